"""Help is complete and quick to give."""

import os
import subprocess
import sys

import pytest
import typer

from starspec import __version__
from starspec.cli import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ALL_COMMANDS = COMMANDS | {f"bench {name}": each for name, each in COMMANDS["bench"].commands.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_says_what_it_is(name: str) -> None:
    for parameter in COMMANDS[name].params:
        text = getattr(parameter, "help", None)
        assert text, f"{name} {parameter.name}"
        assert text.endswith("."), f"{name} {parameter.name}: {text}"


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_no_help_text_is_a_fragment(name: str) -> None:
    for parameter in ALL_COMMANDS[name].params:
        text = getattr(parameter, "help", None) or ""
        assert not text.startswith(("Of ", "As ", "Its ", "The highest", "0 ")), f"{name} {parameter.name}: {text}"
        assert len(text.split()) >= 3 or parameter.name in ("help", "version"), f"{name} {parameter.name}: {text}"


@pytest.mark.parametrize("words", [(), ("bench",)], ids=["starspec", "bench"])
def test_a_bare_command_prints_its_help_and_nothing_else(words: tuple[str, ...], starspec) -> None:
    outcome = starspec(*words)
    assert outcome.code == 2
    assert "Usage: starspec" in outcome.out + outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str, starspec) -> None:
    outcome = starspec(name, "--help")
    assert outcome.code == 0
    assert COMMANDS[name].help.splitlines()[0] in " ".join(outcome.out.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_that_may_be_left_out_shows_its_default(name: str) -> None:
    for parameter in COMMANDS[name].params:
        is_told = parameter.required or parameter.default is not None or isinstance(parameter.show_default, str)
        assert is_told or parameter.name in ("help", "version"), f"{name} {parameter.name}"


def test_the_version_is_printed(starspec) -> None:
    assert starspec("--version") == (0, f"starspec {__version__}\n", "")


def test_help_needs_no_torch() -> None:
    code = "import sys; from starspec.cli import run; run(['up', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("columns", ["0", "00", ""])
def test_no_width_is_an_unknown_width(columns: str) -> None:
    command = [sys.executable, "-m", "starspec", "draft", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": columns})
    assert "--max-num-seqs" in done.stdout
