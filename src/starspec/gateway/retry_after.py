"""How long a client that found the queue full should wait: the queue's length over the rate of finished answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 60.0  # the rate is that of the last minute
MAX_RECORDED: Final = 1024
LEAST_S: Final = 1.0
MOST_S: Final = 60.0


class RetryAfter:
    """Estimates when the queue that stands now will have been served.

    Args:
        num_waiting: the requests in the queues of all targets now.
        clock: seconds, monotonic.
    """

    def __init__(self, num_waiting: Callable[[], int], clock: Callable[[], float]) -> None:
        self._num_waiting = num_waiting
        self._clock = clock
        self._started_s = clock()
        self._finished_s: deque[float] = deque(maxlen=MAX_RECORDED)

    def finish(self) -> None:
        """An answer has ended."""
        self._finished_s.append(self._clock())

    def seconds(self) -> float:
        """`LEAST_S` to `MOST_S`. If no answer has ended yet, one is assumed to end now."""
        now = self._clock()
        since_s = max(self._started_s, now - WINDOW_S)
        if len(self._finished_s) == MAX_RECORDED:
            since_s = max(since_s, self._finished_s[0])
        num_finished = sum(each >= since_s for each in self._finished_s)
        wait_s = self._num_waiting() * (now - since_s) / max(1, num_finished)
        return min(max(wait_s, LEAST_S), MOST_S)
