"""Running the command line inside the test's process."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from starspec.cli import run

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for `predictable`


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def starspec(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*arguments: str) -> Outcome:
        code = run(list(arguments))
        return Outcome(code, *capsys.readouterr())

    return call
