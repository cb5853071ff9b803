"""What rounds try out in order to learn, and how much of the time that may cost.

A policy that never drafts where drafts did not pay would never see that they pay by now. One that always drafts would
never see what a round without drafts takes. So now and then a round is a *trial*: what seems best is left, to learn
what something else takes. A trial is allowed only while all trials together have cost at most CREDIT_ROUNDS and SHARE
of the time. For one that promises much it may be up to PROMISED_ROUNDS more. What the time has earned and trials have
gained is kept for later ones, up to SAVED_ROUNDS. Otherwise a server whose drafts paid for a day, and then pay no more,
would lose minutes with trials, one after the other.

Trials are made where chance makes them look better than they are, so on average they bring less than is expected. The
expected cost is charged only until a trial's round is over. Then it is replaced by the time that the round took, less
what its tokens would have taken in what seemed best. A trial that gains gives back.

The account belongs to one kind of drafter of a target. A hub that is replaced gets no new credit. A hub that never
answers uses up the account of hubs, and leaves that of n-grams as it is.

No clock: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from starspec.policy.length.acceptance import Acceptance

SHARE: Final = 0.01  # of the time: what trials may cost in all
CREDIT_ROUNDS: Final = 2.0  # plain rounds: what the first trials may cost, before there was any time
PROMISED_ROUNDS: Final = 10.0  # plain rounds: what trials that promise FULL_PROMISE may cost in addition
FULL_PROMISE: Final = 0.3  # share by which the speed may be higher; trials that promise less may cost less in addition
SAVED_ROUNDS: Final = 100.0  # plain rounds: what may be kept for later trials, beside the credit
MAX_RATIO: Final = 2.0  # of the time of a trial's round to what was expected at most. A longer one was interrupted, and
# its time and tokens may be those of other rounds, also of another drafter.
LATELY_FADE: Final = 0.99  # of the sequences of the largest round, with each later one
LONGEST_ROUND: Final = 32.0  # plain rounds: what takes longer is a pause, and pauses are no time that trials share


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is expected of a trial whose round has not ended."""

    round_s: float  # seconds of its round, at most
    tokens_s: float  # what its expected tokens would take in what seems best
    speedup: float = 1.0  # speed of what seems best, over that without drafts
    beside_s: float = 0.0  # what it costs beside its round: a hub's prefill
    started_s: float = 0.0  # when it was chosen
    num_sequences: int = 1  # of its round
    num_emitted: int | None = None  # tokens that rounds had given before; None = what it gives will not be known

    @property
    def cost_s(self) -> float:
        """Seconds that it is expected to cost."""
        return self.beside_s + self.round_s - self.tokens_s

    def lost_s(self, gave_s: float, now: float) -> float:
        """Seconds that it has cost, if its round ends now. If that was interrupted: as charged.

        Args:
            gave_s: what its tokens would have taken in what seemed best.
        """
        took_s = now - self.started_s
        if took_s > MAX_RATIO * self.round_s:
            return max(0.0, self.cost_s)
        return self.beside_s + took_s - gave_s


class Trials:
    """The account of one target's trials, from round to round."""

    def __init__(self) -> None:
        self._last_s: float | None = None  # when the last round began
        self._left_s = 0.0  # what trials may cost without credit; below 0, so much of the credit is spent
        self._num_deferred = 0  # rounds in a row
        self.open: Trial | None = None  # the trial of which it is not known yet what it took and gave
        self.num_lately = 0.0  # sequences of the largest round lately
        self.was_drafting = False  # whether the last round drafted because that seemed best
        self.deepest = 0  # draft steps that were asked for
        self.growing_to = 0  # draft steps of the last round's trial, if it was a deeper draft than any before
        self.tried: Sequence[Acceptance] = ()  # of the sequences in the last round's trial, if it may go on

    def pass_time(self, plain_s: float, now: float) -> None:
        """Call it once a round. The time since the last one counts, but no pause: else a server that was idle
        overnight would spend minutes on trials.

        Args:
            plain_s: a round without drafts; 0 = not known.
        """
        if self._last_s is not None and plain_s > 0.0:
            earned_s = SHARE * min(now - self._last_s, LONGEST_ROUND * plain_s)
            self._left_s = min(self._left_s + earned_s, SAVED_ROUNDS * plain_s)
        self._last_s = now

    def note_sequences(self, num: int) -> None:
        """The round has so many sequences. Call it once a round."""
        self.num_lately = max(float(num), LATELY_FADE * self.num_lately)

    def allows(self, cost_s: float, plain_s: float, promise: float = 0.0) -> bool:
        """Whether a trial that is expected to cost so much may be made.

        One that costs more than can ever be left may be made when all is left that can be, and is charged in full.

        Args:
            cost_s: seconds that it takes longer than what seems best, for the tokens that it is expected to give.
            plain_s: a round without drafts.
            promise: by what share the speed may be higher than that of what seems best, with luck.
        """
        num_rounds = CREDIT_ROUNDS + PROMISED_ROUNDS * min(1.0, promise / FULL_PROMISE)
        return min(cost_s - num_rounds * plain_s, SAVED_ROUNDS * plain_s) <= self._left_s

    def spend(self, cost_s: float) -> None:
        """A trial is made that is charged once, with what it is expected to cost."""
        self._left_s -= max(0.0, cost_s)

    def make(self, trial: Trial, plain_s: float, *, is_going_on: bool = False, promise: float = 0.0) -> bool:
        """Make a trial if it is allowed, as `allows`. Returns: whether it is made. Effects: spends what is expected.

        Args:
            is_going_on: it is the second round of a trial, so it is made in any case.
            promise: as `allows`, of one sequence. A round of more sequences tests more tokens, and the error of
                acceptance falls with the root of their number.
        """
        promise = min(FULL_PROMISE, promise) / sqrt(trial.num_sequences)
        is_made = self.allows(trial.cost_s, plain_s, promise) or is_going_on
        if is_made:
            self.spend(trial.cost_s)
            self.open = trial
        return is_made

    def drop(self) -> None:
        """What the open trial took and gave will not be known. It costs what was expected."""
        self.open = None

    def close(self, gave_s: float, now: float, *, is_lower_bound: bool = False) -> None:
        """The round of the open trial is over. From now on it costs what it took and gave.

        Args:
            gave_s: what its tokens would have taken in what seemed best.
            is_lower_bound: they may be worth more than `gave_s`. Then the trial costs no more than was expected.
        """
        assert self.open is not None
        trial, self.open = self.open, None
        charged_s, lost_s = max(0.0, trial.cost_s), trial.lost_s(gave_s, now)
        self._left_s += charged_s - (min(lost_s, charged_s) if is_lower_bound else lost_s)

    def defers(self, most: int, *, is_useless: bool) -> bool:
        """Whether something waits in this round for a measurement, at most so many rounds in a row.

        Args:
            is_useless: it is measured already, or cannot be measured now.
        """
        is_deferred = not is_useless and self._num_deferred < most
        self._num_deferred = self._num_deferred + 1 if is_deferred else 0
        return is_deferred
