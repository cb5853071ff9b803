"""When a refused client should try again: `policy/retry_after.py`, with the queue and the clock of this gateway."""

from __future__ import annotations

from collections.abc import Callable

from starspec.policy.retry_after import QueueTime


class RetryAfter:
    """Estimates when the queue that stands now will have been served.

    Args:
        num_waiting: the requests in the queues of all targets now.
        num_rows: the cache rows of all targets now.
        clock: seconds, monotonic.
    """

    def __init__(self, num_waiting: Callable[[], int], num_rows: Callable[[], int], clock: Callable[[], float]) -> None:
        self._num_waiting = num_waiting
        self._num_rows = num_rows
        self._clock = clock
        self._num_open = 0
        self._queue_time = QueueTime(clock())

    def begin(self, num_answers: int) -> None:
        """A request for so many answers has come."""
        self._add(num_answers)

    def finish(self) -> None:
        """An answer has ended."""
        self._queue_time.note_finished(self._clock())
        self._add(-1)

    def leave(self, num_answers: int) -> None:
        """A request is over, and so many of its answers have not ended."""
        self._add(-num_answers)

    def seconds(self) -> float:
        """As `QueueTime.seconds`."""
        return self._queue_time.seconds(self._num_waiting(), self._clock())

    def _add(self, num_answers: int) -> None:
        self._num_open += num_answers
        self._queue_time.note_load(self._num_open, self._num_rows(), self._clock())
