"""`examples/sharded.py`: a model of bytes in two stages behind short links, and what the example makes of answers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded.py"
NUM_TOKENS = 6  # of an answer
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}: "
ROWS = ["plain", "drafts, one round in flight", "drafts, four rounds in flight"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("sharded_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_example_prints_plain_decoding_beside_drafts_in_flight_and_the_tokens_are_the_same(
    byte_model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(byte_model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    command = [sys.executable, str(EXAMPLE), "--target", str(folder), "--delay-ms", "2", "--max-tokens"]
    done = subprocess.run([*command, str(NUM_TOKENS)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    title, *rows = done.stdout.splitlines()
    assert title == f"two stages, links of 2 ms one way, 4 streams, {4 * NUM_TOKENS} tokens"
    found = [re.fullmatch(r"(.*\w) +(\d+\.\d) tokens/s +(\d+\.\d\d)x", row) for row in rows]
    assert [each and each[1] for each in found] == ROWS
    assert found[0]
    assert found[0][3] == "1.00"
    assert all(each and float(each[2]) > 0 for each in found)


@pytest.mark.parametrize("number", [1, 2])
def test_the_example_says_which_answers_differ_and_fails(
    example: ModuleType, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passes = [example.Pass(["a", "b"], 8, seconds) for seconds in (4.0, 2.0, 1.0)]
    passes[number].texts[1] = "c"

    class Near:
        def __init__(self, *_: Any) -> None:
            self._passes = iter(passes)

        def passes(self, _in_flight: str, _max_tokens: int, *speculative: bool) -> list[Any]:
            return [next(self._passes) for _ in speculative]

    monkeypatch.setattr(example, "Far", Near)
    monkeypatch.setattr(sys, "argv", ["sharded.py", "--target", "here"])
    with pytest.raises(SystemExit, match="drafts changed an answer"):
        example.main()
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split("tokens/s")[1].split()[0] for row in rows] == ["1.00x", "2.00x", "4.00x"]
    assert [row.endswith("DIFFERENT") for row in rows] == [index == number for index in range(3)]
