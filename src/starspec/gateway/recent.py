"""What is asked for more often than it changes, such as /metrics: made at most once in RECENT_S, however many ask."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

RECENT_S: Final = 0.25  # rendering metrics takes milliseconds, in which the event loop does nothing else


class Recent:
    """The bytes that `make` made at most RECENT_S ago.

    Args:
        make: renders them.
        clock: seconds, monotonic.
    """

    def __init__(self, make: Callable[[], bytes], clock: Callable[[], float]) -> None:
        self._make = make
        self._clock = clock
        self._made_s = float("-inf")
        self._of: Hashable = None
        self._bytes = b""

    def get(self, of: Hashable = None) -> bytes:
        """The bytes.

        Args:
            of: what they must tell at once: they are made anew if it has changed.
        """
        now = self._clock()
        if now - self._made_s >= RECENT_S or of != self._of:
            self._bytes, self._of, self._made_s = self._make(), of, now
        return self._bytes
