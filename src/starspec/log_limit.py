"""Bounds what peers and clients can make a process write into its log."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

INTERVAL_S: Final = 10.0
LINES: Final = 10  # of one kind, in one interval


class LogLimit:
    """Counts log lines by kind. Kinds are names in our code, never a peer's words, so there are few.

    Args:
        clock: seconds. It may be set back: then an interval ends.
        num_lines: of one kind, in one interval.
        interval_s: it begins with a line.
    """

    def __init__(self, clock: Callable[[], float], num_lines: int = LINES, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._most = num_lines
        self._interval_s = interval_s
        self._began_s: dict[str, float] = {}
        self._num_lines: dict[str, int] = {}

    def log(self, write: Callable[..., object], event: str, *, kind: str | None = None, **fields: object) -> None:
        """Write a log line, unless too many of its kind were written. It says how many were left out before it.

        Args:
            write: of structlog, such as `log.warning`.
            kind: None = the event.
        """
        num_left_out = self.admit(event if kind is None else kind)
        if num_left_out:
            fields["num_left_out"] = num_left_out
        if num_left_out is not None:
            write(event, **fields)

    def admit(self, kind: str = "") -> int | None:
        """Whether a line may be written now.

        Returns: how many of its kind were left out since the last one; None = leave this one out too.
        """
        now, num_lines = self._clock(), self._num_lines.get(kind, 0)
        if not 0.0 <= now - self._began_s.get(kind, -inf) < self._interval_s:
            self._began_s[kind], self._num_lines[kind] = now, 1
            return max(0, num_lines - self._most)
        self._num_lines[kind] = num_lines + 1
        return 0 if num_lines < self._most else None
