"""Child processes of a benchmark, each with a pipe to its parent. They end with the parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from enum import Enum
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from types import TracebackType
from typing import Any, Self, TypeVar

from starspec.errors import PeerLost

ANSWER_S = 300.0  # longest wait for a message of a child: starting takes seconds, measuring takes minutes
STOP_S = 10.0
Item = TypeVar("Item")
Result = TypeVar("Result")


class CoreSet(Enum):
    """The cores on which a child may run. The hub gets its own core, as if the targets ran on other machines."""

    ALL = "all"
    FIRST = "the first"
    ALL_BUT_FIRST = "all but the first"


class BenchProcess:
    """A child process that runs a function. The first argument of the function is a pipe to this process.

    A context manager: leaving it ends the child, at the latest after STOP_S.

    Args:
        cores: where the child may run.
    """

    def __init__(self, run: Callable[..., None], *arguments: Any, cores: CoreSet = CoreSet.ALL) -> None:
        context = _context(run.__module__)
        if context.get_start_method() == "forkserver":
            resource_tracker.ensure_running()  # on its start it lets interrupts through
            with _interrupts_waiting():  # what it starts inherits this, while it imports, and so do the children
                forkserver.ensure_running()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, run, arguments, cores), daemon=True)
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

    def send(self, message: Any = None) -> None:
        """Send the child a message."""
        self._pipe.send(message)

    def receive(self) -> Any:
        """The child's next message. Raises: PeerLost if the child died or sends nothing for ANSWER_S seconds."""
        if not self._pipe.poll(ANSWER_S):
            raise PeerLost(f"a benchmark process sent nothing for {ANSWER_S:.0f} s")
        try:
            message = self._pipe.recv()
        except EOFError as error:
            raise PeerLost("a benchmark process died") from error
        if isinstance(message, _Failure):
            raise PeerLost(f"a benchmark process failed: {message.reason}")
        return message


@contextmanager
def in_processes(run: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Iterator[Result]]:
    """Run a function for each item, in a child for each processor.

    Returns: the results, in order. If the block fails or is interrupted, the children end at once.
    """
    before = set(multiprocessing.active_children())
    resource_tracker.ensure_running()  # on its start it lets interrupts through
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"), initializer=_prepare) as pool:
        try:
            with _interrupts_waiting():  # the children inherit this, while they import
                results = pool.map(run, items)
            yield results
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            raise


def _context(imported_once: str) -> ForkServerContext | SpawnContext:
    """Children are forked from a server that has already imported torch, and that has no threads or sockets.

    A fresh interpreter would spend seconds on importing torch, and a benchmark starts hundreds of children.

    Args:
        imported_once: a module that most children need. The first child decides: the server starts with it.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([imported_once])
    return context


@contextmanager
def _interrupts_waiting() -> Iterator[None]:
    """SIGINT waits until the block ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Failure:
    def __init__(self, reason: str) -> None:
        self.reason = reason


def _run(pipe: Connection, run: Callable[..., None], arguments: tuple[Any, ...], cores: CoreSet) -> None:
    _prepare()
    _quiet()
    _pin_to(cores)
    _sleep_sharply()
    try:
        run(pipe, *arguments)
    except Exception as error:  # the parent tells the person
        pipe.send(_Failure(f"{type(error).__name__}: {error}"))
    finally:
        pipe.close()


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    _end_with_parent()


def _end_with_parent() -> None:
    """End this process when its parent ends, even if it waits for something."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="bench-parent", daemon=True).start()


def _pin_to(cores: CoreSet) -> None:
    """Pin this process to these cores. No effect on machines with one core or without affinity."""
    if cores is CoreSet.ALL or not hasattr(os, "sched_setaffinity"):
        return
    first, *others = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(0, [first] if cores is CoreSet.FIRST else others)


def _sleep_sharply() -> None:
    """Make sleeps exact: by default Linux ends them up to 50 us late. No effect on other systems."""
    if sys.platform == "linux":
        set_timer_slack, nanoseconds = 29, 1000
        ctypes.CDLL(None).prctl(set_timer_slack, nanoseconds, 0, 0, 0)


def _quiet() -> None:
    """Log errors only."""
    import logging  # noqa: PLC0415 (only here)

    import structlog  # noqa: PLC0415

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
