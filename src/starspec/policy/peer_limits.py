"""How much work a peer may cause. No clock and no I/O.

Most frames of a peer are answers: a hub sends a proposal for each verdict, a target a verdict for each proposal. So a
peer may send what it was asked for, and some frames more each second. A peer that sends more than that is broken or
hostile, however fast both ends are.

The rate limit of a target is an allowance of draft tokens, none of which it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNIT_BYTES: Final = 4096  # a frame is one unit of work, and one more for each so many bytes
MAX_OWED: Final = 4096.0  # units: answers that never came do not add up for ever


class Allowance:
    """Units of work that one peer may cause: a token bucket, and the units that it was asked for. O(1) each.

    Args:
        per_s: units that may come unasked each second.
        burst: units that may come unasked at once: so many are saved up.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._unasked = burst
        self._owed = 0.0
        self._filled_s = float("-inf")

    def set_rate(self, per_s: float) -> None:
        """From the last use on, so many units may come unasked each second."""
        self._per_s = per_s

    def owe(self, num_units: float) -> None:
        """The peer was asked for so many units more."""
        self._owed = min(MAX_OWED, self._owed + num_units)

    def take(self, num_units: float, now: float) -> bool:
        """The peer has sent so many units, which count first against what it was asked for.

        Returns: False if they are more than it may send. They count all the same, so that it has to wait.
        """
        asked = min(self._owed, num_units)
        self._owed -= asked
        if asked < num_units:
            self._refill(now)
            self._unasked -= num_units - asked
        return self._unasked >= 0.0

    def has_units(self, now: float, num_reserved: float = 0.0) -> bool:
        """Whether the peer may send more, besides so many units that are reserved. One that sent too much has to wait.

        What is sent then may be more than there is: it counts in full.
        """
        self._refill(now)
        return self._unasked + self._owed > num_reserved and self._unasked >= 0.0

    def _refill(self, now: float) -> None:
        since_s = max(0.0, now - self._filled_s)
        self._unasked = min(self._burst, self._unasked + self._per_s * since_s)
        self._filled_s = max(self._filled_s, now)


def work_of(frames: Sequence[bytes]) -> float:
    """Units of these frames."""
    return len(frames) + sum(map(len, frames)) / UNIT_BYTES
