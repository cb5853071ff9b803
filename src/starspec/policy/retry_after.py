"""When a client that was refused should try again, as the gateway's `Retry-After` says.

If the queue is full, this is the queue's length over the rate at which busy targets finish answers. In other cases it
is a fixed time. No I/O and no clock of its own: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import Final

from starspec.errors import RETRY_AFTER_S

WINDOW_S: Final = 60.0  # the rate is that of the last minute in which targets were busy
MAX_RECORDED: Final = 1024
LEAST_S: Final = RETRY_AFTER_S  # for a full queue, and where nothing better is known
MOST_S: Final = 60.0
LOST_S: Final = 1.0  # after the loss of a target: a supervisor restarts it within seconds
NO_TARGET_S: Final = 1.0  # while no target can answer: one may be ready soon
NO_CONNECTION_S: Final = 1.0  # if all connections are taken: they come and go quickly
STOPPING_S: Final = 1.0  # if the gateway stops: the next connection may reach another one


class QueueTime:
    """Estimates when a queue will have been served, by the answers that have ended lately.

    Time counts by how busy the targets are: half of it while half of their rows have answers, and none while they have
    nothing to do. Otherwise the first answers after an hour would seem to take an hour.
    """

    def __init__(self, now: float) -> None:
        self._now_s = now
        self._busy_s = 0.0  # time that counts, until then
        self._share = 0.0  # of the rows that have answers, since then
        self._finished_s: deque[float] = deque(maxlen=MAX_RECORDED)  # in time that counts

    def note_load(self, num_answers: int, num_rows: int, now: float) -> None:
        """From now on the targets have so many answers in work, or waiting for it, and so many rows for them."""
        self._busy_s = self._busy_until(now)
        self._now_s = now
        self._share = min(1.0, num_answers / max(1, num_rows))

    def note_finished(self, now: float) -> None:
        """An answer has ended."""
        self._finished_s.append(self._busy_until(now))

    def seconds(self, num_waiting: int, now: float) -> float:
        """`LEAST_S` to `MOST_S`, for a queue of so many requests. If no answer has ended yet, one is assumed to now."""
        until_s = self._busy_until(now)
        since_s = max(0.0, until_s - WINDOW_S)
        if len(self._finished_s) == MAX_RECORDED:
            since_s = max(since_s, self._finished_s[0])
        num_finished = sum(each >= since_s for each in self._finished_s)
        wait_s = num_waiting * (until_s - since_s) / max(1, num_finished)
        return min(max(wait_s, LEAST_S), MOST_S)

    def _busy_until(self, now: float) -> float:
        return self._busy_s + self._share * (now - self._now_s)


def whole_seconds(retry_after_s: float) -> int:
    """The value of `Retry-After`, which has no fractions: not sooner, and at least 1."""
    return max(1, ceil(retry_after_s))
