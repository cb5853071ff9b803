"""`examples/sharded.py`: a model of bytes in two stages behind short links, and what the example makes of answers."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from starspec import cli
from starspec.cli import serve as cli_serve
from starspec.cli.process import Server, ServerProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "sharded.py"
NUM_TOKENS = 6  # of an answer
LIMIT_S = 60.0
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


class ServerThread(threading.Thread):
    """Stands in for StarspecServer: the same command in a thread. A process would take seconds to import torch."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(daemon=True)
        self._arguments = arguments
        self._is_ready = threading.Event()
        self._server: Server | None = None
        self.start()

    def run(self) -> None:
        cli.run([*self._arguments])
        self._is_ready.set()  # if it failed

    def serve(self, server: Server) -> None:
        self._server = server
        self._is_ready.set()
        server.run()

    def wait_ready(self) -> str:
        assert self._is_ready.wait(LIMIT_S)
        assert self._server is not None, self._arguments
        return self._server.address

    def end(self) -> None:
        if self._server is not None:
            self._server.stop()
        self.join(LIMIT_S)
        assert not self.is_alive(), self._arguments


def serve_in_thread(_: ServerProcess, server: Server) -> None:
    here = threading.current_thread()
    assert isinstance(here, ServerThread)
    here.serve(server)


@pytest.mark.system
def test_the_example_prints_plain_decoding_beside_drafts_in_flight_and_the_tokens_are_the_same(
    example: ModuleType,
    byte_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(byte_model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    monkeypatch.setattr(example, "StarspecServer", ServerThread)
    monkeypatch.setattr(ServerProcess, "serve", serve_in_thread)
    monkeypatch.setattr(cli_serve, "hide_torch", lambda: None)  # others have imported it here
    options = ["--target", str(folder), "--delay-ms", "2", "--max-tokens", str(NUM_TOKENS)]
    monkeypatch.setattr(sys, "argv", ["sharded.py", *options])
    example.main()
    title, *rows = capsys.readouterr().out.splitlines()
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
