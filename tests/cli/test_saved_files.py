"""A result that could not be saved is refused before anything is measured, by every command that saves one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from starspec.cli import app


def saving_options(group: TyperGroup, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command line that ends with an option for a result's file."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from saving_options(command, (*words, name))
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        yield from ((*words, name, option) for option in ("--json", "--png") if option in options)


ROOT = get_command(app)
assert isinstance(ROOT, TyperGroup)
SAVING = list(saving_options(ROOT))


def refusal(outcome) -> str:
    """The one sentence that a mistake is answered with."""
    assert (outcome.code, outcome.out) == (2, "")
    (sentence,) = outcome.err.splitlines()
    return sentence


def test_all_benchmarks_save_their_results() -> None:
    names = {words[1] for words in SAVING if words[0] == "bench"}
    assert names == {"pair", "tree", "batch", "star", "async", "warm", "vllm", "wire", "faults", "certify"}
    assert {("verify", "--json"), ("doctor", "--json"), ("train", "--json"), ("bench", "tree", "--png")} <= set(SAVING)


@pytest.mark.parametrize("words", SAVING, ids=" ".join)
def test_a_folder_is_no_files_name(words: tuple[str, ...], starspec, tmp_path: Path) -> None:
    folder = tmp_path / "folder.png"
    folder.mkdir()
    sentence = refusal(starspec(*words, str(folder)))
    assert f"invalid value for '{words[-1]}': '{folder}' is a folder: give the name of a file" in sentence


@pytest.mark.parametrize("words", SAVING, ids=" ".join)
def test_nothing_is_saved_below_a_file(words: tuple[str, ...], starspec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sentence = refusal(starspec(*words, str(tmp_path / "file" / "new" / "result.png")))
    assert f"cannot be written: '{tmp_path / 'file'}' is not a folder" in sentence


def test_nothing_is_saved_under_a_name_that_no_file_can_have(starspec, tmp_path: Path) -> None:
    sentence = refusal(starspec("bench", "wire", "--json", str(tmp_path / ("x" * 300))))
    assert "cannot be written: File name too long" in sentence


def test_nothing_is_saved_where_this_process_may_not_write(starspec, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("os.access", lambda place, _mode: place != tmp_path)  # to root no folder is read-only
    sentence = refusal(starspec("bench", "wire", "--json", str(tmp_path / "new" / "result.json")))
    assert f"cannot be written: '{tmp_path}' is read-only" in sentence


@pytest.mark.parametrize("command", ["tree", "batch"])
@pytest.mark.parametrize("name", ["picture.foo", "picture", ".png"])
def test_a_picture_is_refused_whose_name_ends_as_none_can(command: str, name: str, starspec, tmp_path: Path) -> None:
    sentence = refusal(starspec("bench", command, "--png", str(tmp_path / name)))
    assert "invalid value for '--png': the name of a picture ends with .png, .svg or .pdf, not" in sentence


@pytest.mark.parametrize(
    "words", [("--json", "new/result.json"), ("--png", "new/picture.SVG"), ("--json", "/dev/null")]
)
def test_a_file_that_can_be_written_is_refused_by_nobody_and_not_yet_made(
    words: tuple[str, str], starspec, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "missing option '--target' / '--model'" in refusal(starspec("bench", "tree", *words))
    assert list(tmp_path.iterdir()) == []
