"""Running the command line inside the test's process."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import structlog

from starspec.cli import run


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def starspec(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Outcome]]:
    def call(*arguments: str) -> Outcome:
        code = run(list(arguments))
        return Outcome(code, *capsys.readouterr())

    yield call
    structlog.reset_defaults()  # a command points the log at the stderr of its time
