"""Worker processes that share work, and that end when their parent ends.

Each holds one end of a line whose other end its parent alone holds. The line's end is the sign to stop: the parent
closes it when the rest is not wanted any more, and the kernel does when the parent is killed.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from starspec.errors import StarspecError

IsWanted = Callable[[], bool]
Work = Callable[..., None]  # (*share, is_wanted); importable


def run_apart(work: Work, shares: Iterable[tuple[Any, ...]], look: Callable[[], None], every_s: float) -> None:
    """Run every share of the work in its own process, and wait for all.

    Args:
        work: should call `is_wanted` often, and return when it is False.
        look: called every `every_s` seconds meanwhile, and when a share is done.
    Raises: what a share raised; StarspecError if a process was killed.
    Effects: starts processes. They have ended when this returns or raises.
    """
    workers: dict[Connection, BaseProcess] = {}
    pool = ThreadPoolExecutor()
    try:
        # start them in parallel: each start takes seconds of imports
        starts = [pool.submit(_start, work, share, workers) for share in shares]
        for each in starts:
            each.result()
        at_work = set(workers)
        while at_work:
            ended = at_work.intersection(wait(at_work, timeout=every_s))
            at_work -= ended
            for line in ended:
                _check(line, workers[line])
            look()
    finally:
        pool.shutdown(cancel_futures=True)  # afterwards, workers holds every started process
        for line in workers:
            line.close()
        for process in workers.values():
            process.join()


def _start(work: Work, share: tuple[Any, ...], workers: dict[Connection, BaseProcess]) -> None:
    """Effects: adds the process to `workers`."""
    context = get_context("spawn")  # a fork would inherit the pipes of the others, and torch's locks
    ours, theirs = context.Pipe()
    process = context.Process(target=_be_worker, args=(work, share, theirs), daemon=True)
    process.start()
    theirs.close()
    workers[ours] = process


def _check(line: Connection, process: BaseProcess) -> None:
    """Receive the result of a worker that ended."""
    try:
        error = line.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise StarspecError(
            f"a process that answered prompts ended with {process.exitcode} (-9: killed, perhaps for want of memory); "
            "the same command goes on where it was"
        ) from None
    if error is not None:
        raise error


def _be_worker(work: Work, share: tuple[Any, ...], line: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; workers notice its end
    error: Exception | None = None
    try:
        work(*share, lambda: not line.poll())
    except Exception as raised:  # any error: the parent raises it
        error = raised
    with contextlib.suppress(OSError):  # the parent may be gone
        line.send(error)
