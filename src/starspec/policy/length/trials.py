"""What rounds try out in order to learn, and how much of the time that may cost.

A policy that never drafts where drafts did not pay would never see that they pay by now. One that always drafts would
never see what a round without drafts takes. So now and then a round is a *trial*: what seems best is left, to learn
what something else takes. A trial is allowed only while all trials together have cost at most SHARE of the time.

The account belongs to one kind of drafter of a target. A hub that is replaced gets no new credit. A hub that never
answers uses up the account of hubs, and leaves that of n-grams as it is.

No clock: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.007  # of the time: what trials may cost in all
CREDIT_ROUNDS: Final = 2.0  # plain rounds: what the first trials may cost, before there was any time
LATELY_FADE: Final = 0.99  # of the sequences of the largest round, with each later one
LONGEST_ROUND: Final = 32.0  # plain rounds: what takes longer is a pause, and pauses are no time that trials share


class Trials:
    """The account of one target's trials, from round to round."""

    def __init__(self) -> None:
        self._last_s: float | None = None  # when the last round began
        self._earned_s = 0.0
        self._spent_s = 0.0
        self._unsettled: tuple[float, float] | None = None  # when a trial was made, and what may be given back of it
        self._num_deferred = 0  # rounds in a row
        self.num_lately = 0.0  # sequences of the largest round lately
        self.was_drafting = False  # whether the last round drafted because that seemed best
        self.deepest = 0  # draft steps that were asked for
        self.num_probing = 0  # sequences whose probe of the last round may go on in this one
        self.growing_to = 0  # draft steps of the last round's growth, which may go on in this one

    def pass_time(self, plain_s: float, now: float) -> None:
        """Call it once a round. The time since the last one counts, but no pause: else a server that was idle
        overnight would spend minutes on trials.

        Args:
            plain_s: a round without drafts; 0 = not known.
        """
        if self._last_s is not None:
            self._earned_s += SHARE * min(now - self._last_s, LONGEST_ROUND * plain_s)
        self._last_s = now

    def note_sequences(self, num: int) -> None:
        """The round has so many sequences. Call it once a round."""
        self.num_lately = max(float(num), LATELY_FADE * self.num_lately)

    def allows(self, cost_s: float, plain_s: float) -> bool:
        """Whether a trial that is expected to cost so much may be made.

        Args:
            cost_s: seconds that it takes longer than what seems best, for the tokens that it is expected to give.
            plain_s: a round without drafts.
        """
        return self._spent_s + cost_s <= CREDIT_ROUNDS * plain_s + self._earned_s

    def spend(self, cost_s: float) -> None:
        """The trial is made."""
        self._spent_s += max(0.0, cost_s)

    def make(
        self, cost_s: float, plain_s: float, now: float, *, at_most_s: float = 0.0, is_going_on: bool = False
    ) -> bool:
        """Make a trial if it is allowed, as `allows`. Returns: whether it is made. Effects: spends what it costs.

        Args:
            at_most_s: the part of the cost that may turn out to be less by the end of the round.
            is_going_on: it is the second round of a trial, so it is made in any case.
        """
        is_made = self.allows(cost_s, plain_s) or is_going_on
        if is_made:
            self.spend(cost_s)
            self._unsettled = (now, min(at_most_s, cost_s))
        return is_made

    def settle(self, plain_s: float, now: float) -> None:
        """The round of the last trial is over: give back what it did not take of the time that it was charged with.

        Args:
            plain_s: a round without drafts. By so much the round was not longer because of the trial.
        """
        if self._unsettled is not None:
            (started_s, at_most_s), self._unsettled = self._unsettled, None
            self._spent_s -= max(0.0, at_most_s - max(0.0, now - started_s - plain_s))

    def defers(self, most: int, *, is_useless: bool) -> bool:
        """Whether something waits in this round for a measurement, at most so many rounds in a row.

        Args:
            is_useless: it is measured already, or cannot be measured now.
        """
        is_deferred = not is_useless and self._num_deferred < most
        self._num_deferred = self._num_deferred + 1 if is_deferred else 0
        return is_deferred
