"""How long to leave alone what fails again and again. No I/O and no clock: `now` is seconds of one monotonic clock."""

from __future__ import annotations

from math import inf
from typing import Final

RETRY_S: Final = 1.0  # a tag that the hub has declined may be opened again after this
FAILURE_PAUSE_S: Final = 1.0  # after a failed draft step, tags are declined: perhaps the drafter always fails


class Backoff:
    """Pauses after failures: each is twice as long as the last one, until something has worked for a while.

    Args:
        first_s: the first pause.
        longest_s: no pause is longer.
        stable_s: after it has worked for so long, the pauses begin anew.
        num_free: so many failures come before the first pause.
    """

    def __init__(self, first_s: float, longest_s: float, stable_s: float, num_free: int = 0) -> None:
        self._first_s, self._longest_s, self._stable_s, self._num_free = first_s, longest_s, stable_s, num_free
        self._next_s = first_s
        self._works_since_s = inf
        self.num_failures = 0  # in a row

    def note_success(self, now: float) -> None:
        """It works, since now if it had failed."""
        self._works_since_s = min(self._works_since_s, now)

    def pause_s(self, now: float) -> float:
        """It has failed. Returns: how long to leave it alone; 0 = try again at once."""
        if now - self._works_since_s >= self._stable_s:
            self._next_s, self.num_failures = self._first_s, 0
        self._works_since_s = inf
        self.num_failures += 1
        if self.num_failures <= self._num_free:
            return 0.0
        pause_s, self._next_s = self._next_s, min(2.0 * self._next_s, self._longest_s)
        return pause_s


class DraftPause:
    """After a failed draft step, a hub declines tags for a while, and tells their targets when to ask again."""

    def __init__(self) -> None:
        self._until_s = -inf

    def note_failed_step(self, now: float) -> None:
        """A draft step has failed."""
        self._until_s = now + FAILURE_PAUSE_S

    def is_pausing(self, now: float) -> bool:
        """Whether to open no tags."""
        return now < self._until_s

    def retry_after_s(self, now: float) -> float:
        """When a target whose tag is declined may ask again, whether or not there is a pause."""
        return max(RETRY_S, self._until_s - now)
