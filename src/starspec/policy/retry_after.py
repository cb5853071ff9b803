"""When a client that was refused should try again, as the gateway's `Retry-After` says.

If the queue is full, this is the queue's length over the rate of finished answers. In other cases it is a fixed time.
No I/O and no clock of its own: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

from starspec.errors import RETRY_AFTER_S

WINDOW_S: Final = 60.0  # the rate is that of the last minute
MAX_RECORDED: Final = 1024
LEAST_S: Final = RETRY_AFTER_S  # for a full queue, and where nothing better is known
MOST_S: Final = 60.0
LOST_S: Final = 1.0  # after the loss of a target: a supervisor restarts it within seconds
NO_TARGET_S: Final = 1.0  # while no target can answer: one may be ready soon
NO_CONNECTION_S: Final = 1.0  # if all connections are taken: they come and go quickly
STOPPING_S: Final = 1.0  # if the gateway stops: the next connection may reach another one


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


def whole_seconds(retry_after_s: float) -> int:
    """The value of `Retry-After`, which has no fractions: not sooner, and at least 1."""
    return max(1, ceil(retry_after_s))
