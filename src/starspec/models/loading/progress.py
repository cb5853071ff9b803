"""How far the loading of a model has come: those who load report it, and whoever started the loading may listen.

The listener belongs to a context, not to the calls in between: weights are read and packed many calls deep, and most
callers show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Listener = Callable[[str, int, int], None]
"""Called with a stage, what is done of it, and what there is to do; 0 = that is unknown."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Call the listener with every report of the block; None = with none."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(stage: str, num_done: int = 0, num_all: int = 0) -> None:
    """Tell the listener, if there is one, how far a stage is."""
    listener = _listener.get()
    if listener is not None:
        listener(stage, num_done, num_all)


def counted(stage: str, things: Iterable[tuple[T, int]], num_all: int) -> Iterator[T]:
    """Pass things on, and report them as done when the next one is asked for.

    Args:
        things: each with what it counts for.
        num_all: what all of them count for together.
    """
    num_done = 0
    for thing, num in things:
        report(stage, num_done, num_all)
        yield thing
        num_done += num
    report(stage, num_done, num_all)


def counting(stage: str, call: Callable[..., T], num_all: int) -> Callable[..., T]:
    """The function, which reports after each of its calls; `num_all` are expected."""
    num_done = 0

    def counted_call(*args: Any) -> T:
        nonlocal num_done
        report(stage, num_done, num_all)
        found = call(*args)
        num_done += 1
        report(stage, num_done, num_all)
        return found

    return counted_call
