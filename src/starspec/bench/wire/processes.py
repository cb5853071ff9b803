"""Child processes of a benchmark: started afresh, spoken with over a pipe, never left behind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from starspec.errors import PeerLost

ANSWER_S = 300.0  # longest wait for a child's word: starting takes seconds, measuring up to minutes
STOP_S = 10.0


class BenchProcess:
    """One child that runs a function with a pipe to this process as its first argument.

    A context manager; leaving it ends the child, at the latest after STOP_S.
    """

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share torch's threads and ZeroMQ's sockets
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, run, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.terminate()
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def say(self, word: Any = None) -> None:
        """Send the child a word."""
        self._pipe.send(word)

    def hear(self) -> Any:
        """The child's next word. Raises: PeerLost if it died or says nothing for ANSWER_S seconds."""
        if not self._pipe.poll(ANSWER_S):
            raise PeerLost(f"a benchmark process said nothing for {ANSWER_S:.0f} s")
        try:
            word = self._pipe.recv()
        except EOFError as error:
            raise PeerLost("a benchmark process died") from error
        if isinstance(word, _Failure):
            raise PeerLost(f"a benchmark process failed: {word.reason}")
        return word


class _Failure:
    def __init__(self, reason: str) -> None:
        self.reason = reason


def _run(pipe: Connection, run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    _quiet()
    try:
        run(pipe, *arguments)
    except Exception as error:  # the parent tells the person
        pipe.send(_Failure(f"{type(error).__name__}: {error}"))
    finally:
        pipe.close()


def _quiet() -> None:
    """Children log errors only."""
    import logging  # noqa: PLC0415 (only here)

    import structlog  # noqa: PLC0415

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
