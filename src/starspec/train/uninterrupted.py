"""Ctrl-C between two steps and not within one: half a step can be neither kept nor undone."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def uninterrupted(save: Callable[[], None]) -> Iterator[None]:
    """Put off an interrupt (SIGINT) until the block has ended; then save, and raise it.

    A second one is not put off. In a thread that gets no signals, and where they are ignored, as of a command that a
    shell runs in the background, the block just runs.

    Raises: KeyboardInterrupt. Effects: the process's handler of SIGINT, while the block runs.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield
        return
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        save()
        raise KeyboardInterrupt
