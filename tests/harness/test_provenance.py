"""Provenance: what a receipt says of machine, code and models."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import starspec
from starspec.errors import OutputError
from starspec.harness.provenance import abbreviate, collect_provenance, hash_model, hash_token_ids
from starspec.harness.report import Report, Spread, write_report


def test_a_model_is_hashed_by_its_content(tmp_path: Path) -> None:
    for name, weights in (("one", b"1"), ("same", b"1"), ("other", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        (tmp_path / name / "README.md").write_text(name)
    hashes = {name: hash_model(str(tmp_path / name)) for name in ("one", "same", "other")}
    assert hashes["one"] == hashes["same"] != hashes["other"]


def test_a_synthetic_model_is_called_so() -> None:
    assert collect_provenance({"target": "synthetic:alpha=1"}).models == {"target": "synthetic"}


def test_the_receipt_names_command_code_and_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/starspec", "verify", "--target", str(tmp_path / "a" / "model")])
    provenance = collect_provenance()
    assert provenance.argv == ["starspec", "verify", "--target", ".../a/model"]
    assert provenance.num_cores >= 1
    assert provenance.cpu
    assert provenance.packages.keys() >= {"torch", "transformers", "pyzmq"}
    assert provenance.date.endswith("+00:00")


def test_a_commit_while_something_is_measured_is_not_the_one_that_was_measured(tmp_path: Path) -> None:
    package = tmp_path / "src" / "starspec"
    shutil.copytree(Path(starspec.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "heads"))

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "measured")
    measured = git("rev-parse", "HEAD")
    script = """
from starspec.harness.provenance import collect_provenance
print("loaded", flush=True)
input()
found = collect_provenance()
print(found.git_sha, found.has_local_changes)
"""
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with child:
        assert child.stdout.readline() == "loaded\n"
        (package / "ids.py").write_text("changed")
        git("commit", "-qam", "later")
        (package / "ids.py").write_text("changed again")
        assert child.communicate("\n", timeout=60)[0] == f"{measured} False\n"


@pytest.mark.parametrize("argument", ["--quick", "models/one", "synthetic:alpha=0.5", "0.5"])
def test_only_absolute_paths_are_abbreviated(argument: str) -> None:
    assert abbreviate(argument) == argument


def test_an_argument_that_is_not_utf8_can_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["starspec", "bench", "--dataset", "caf\udce9.jsonl"])
    content = msgspec.json.decode(msgspec.json.encode(collect_provenance()))
    assert content["argv"][-1] == r"caf\udce9.jsonl"


def test_equal_answers_have_equal_hashes() -> None:
    assert hash_token_ids([[1, 2], [3]]) == hash_token_ids([[1, 2], [3]])
    assert hash_token_ids([[1, 2], [3]]) != hash_token_ids([[1], [2, 3]])
    for answers in ([], [[]], [[1, 2]], [[1, 2], [3], []]):  # one by one, as all at once
        assert hash_token_ids(iter(answers)) == hashlib.sha256(repr(answers).encode()).hexdigest()


def test_a_report_is_a_json_file_with_provenance_rows_and_ratios(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(Report(collect_provenance(), [Spread.of([3.0, 1.0, 2.0])], {"one_vs_other": 2.0}), path)
    content = msgspec.json.decode(path.read_bytes())
    assert content["rows"] == [{"median": 2.0, "lowest": 1.0, "highest": 3.0}]
    assert content["ratios"] == {"one_vs_other": 2.0}
    assert content["provenance"]["starspec_version"]


def test_a_report_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"report\.json' cannot be written"):
        write_report(Spread.of([1.0]), tmp_path / "file" / "report.json")
