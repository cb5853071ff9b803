"""Times what is drawn by the laws of one target's requests."""

from __future__ import annotations

from collections.abc import Callable


class LawTimer:
    """A context manager for each time that children are drawn; it is never entered twice at once.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = 0.0
        self._taken_s = 0.0

    def __enter__(self) -> None:
        self._since_s = self._clock()

    def __exit__(self, *_: object) -> None:
        self._taken_s += self._clock() - self._since_s

    def take(self) -> float:
        """Seconds since the last call."""
        taken_s, self._taken_s = self._taken_s, 0.0
        return taken_s
