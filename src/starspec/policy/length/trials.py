"""What rounds try out in order to learn, and how much of the time that may cost.

A policy that never drafts where drafts did not pay would never see that they pay by now. One that always drafts would
never see what a round without drafts takes. So now and then a round is a *trial*: what seems best is left, to learn
what something else takes. A trial is allowed only while all trials together have cost at most SHARE of the time.

No clock: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.005  # of the time: what trials may cost in all
CREDIT_ROUNDS: Final = 1.0  # plain rounds: what the first trials may cost, before there was any time


class Trials:
    """The account of one target's trials, from round to round."""

    def __init__(self) -> None:
        self._started_s: float | None = None
        self._spent_s = 0.0
        self.was_drafting = False  # whether the last round drafted because that seemed best

    def allows(self, cost_s: float, plain_s: float, now: float) -> bool:
        """Whether a trial that is expected to cost so much may be made.

        Args:
            cost_s: seconds that it takes longer than what seems best, for the tokens that it is expected to give.
            plain_s: a round without drafts.
        """
        if self._started_s is None:
            self._started_s = now
        return self._spent_s + cost_s <= CREDIT_ROUNDS * plain_s + SHARE * (now - self._started_s)

    def spend(self, cost_s: float) -> None:
        """The trial is made."""
        self._spent_s += max(0.0, cost_s)
