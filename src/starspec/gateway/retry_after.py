"""When a refused client should try again: `policy/retry_after.py`, with the queue and the clock of this gateway."""

from __future__ import annotations

from collections.abc import Callable

from starspec.policy.retry_after import QueueTime


class RetryAfter:
    """Estimates when the queue that stands now will have been served.

    Args:
        num_waiting: the requests in the queues of all targets now.
        clock: seconds, monotonic.
    """

    def __init__(self, num_waiting: Callable[[], int], clock: Callable[[], float]) -> None:
        self._num_waiting = num_waiting
        self._clock = clock
        self._queue_time = QueueTime(clock())

    def finish(self) -> None:
        """An answer has ended."""
        self._queue_time.note_finished(self._clock())

    def seconds(self) -> float:
        """As `QueueTime.seconds`."""
        return self._queue_time.seconds(self._num_waiting(), self._clock())
