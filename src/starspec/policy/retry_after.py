"""How long a client that found the queue full should wait: the queue's length over the rate of finished answers.

No I/O and no clock of its own: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 60.0  # the rate is that of the last minute
MAX_RECORDED: Final = 1024
LEAST_S: Final = 1.0
MOST_S: Final = 60.0


class QueueTime:
    """Estimates when a queue will have been served, by the answers that have ended lately."""

    def __init__(self, now: float) -> None:
        self._started_s = now
        self._finished_s: deque[float] = deque(maxlen=MAX_RECORDED)

    def note_finished(self, now: float) -> None:
        """An answer has ended."""
        self._finished_s.append(now)

    def seconds(self, num_waiting: int, now: float) -> float:
        """`LEAST_S` to `MOST_S`, for a queue of so many requests. If no answer has ended yet, one is assumed to now."""
        since_s = max(self._started_s, now - WINDOW_S)
        if len(self._finished_s) == MAX_RECORDED:
            since_s = max(since_s, self._finished_s[0])
        num_finished = sum(each >= since_s for each in self._finished_s)
        wait_s = num_waiting * (now - since_s) / max(1, num_finished)
        return min(max(wait_s, LEAST_S), MOST_S)
