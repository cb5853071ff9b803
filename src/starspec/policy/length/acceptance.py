"""What a sequence's drafts achieved so far."""

from __future__ import annotations

from math import sqrt
from typing import Final

from starspec.policy.estimators import DecayedRatio

FIRST_RATE: Final = 0.8  # before the first verdict
FIRST_REACH: Final = 1.0
NUM_PRIOR: Final = 2.0  # draft tokens that these count as
NUM_USUAL: Final = 10.0  # draft tokens that the usual acceptance counts as, for one sequence
FADE: Final = 0.9  # of all drafts, with each newer one
SHRUNK_FADE: Final = 0.95  # the same where few drafts are not taken at their word
USUAL_FADE: Final = 0.98  # the same for the drafts of all sequences together
IDLE_ROUNDS: Final = 8  # without a draft, before the sequence is idle


class Acceptance:
    """How many draft tokens of one sequence were accepted, how long its drafts were, and when it had the last one.

    Args:
        first_rate: `rate` before the first verdict.
        first_reach: `reach` before the first verdict.
        usual: acceptance of the drafter's drafts for all sequences. This one's is shrunk towards it, since a few drafts
            say little. None = it begins with `first_rate` and `first_reach`, which fade.
        fade: weight of all drafts, with each newer one.
    """

    def __init__(
        self,
        first_rate: float = FIRST_RATE,
        first_reach: float = FIRST_REACH,
        *,
        usual: Acceptance | None = None,
        fade: float = FADE,
    ) -> None:
        num_prior = NUM_PRIOR if usual is None else 0.0
        self._usual = usual
        self._accepted = DecayedRatio(fade, first_rate, num_prior)
        self._continued = DecayedRatio(fade, first_reach, num_prior)
        self._gained = DecayedRatio(fade)
        self.num_idle_rounds = 0  # in a row, without a draft

    @property
    def rate(self) -> float:
        """Probability that a draft token is accepted if all before it are."""
        return self._accepted.value if self._usual is None else self._accepted.shrunk(self._usual.rate, NUM_USUAL)

    @property
    def reach(self) -> float:
        """Probability that a draft goes on after a token, if more was requested: a hub ends drafts when in doubt."""
        return self._continued.value if self._usual is None else self._continued.shrunk(self._usual.reach, NUM_USUAL)

    @property
    def gain(self) -> float:
        """Probability that a draft goes on after an accepted token, and the next token is accepted, too.

        At least `rate * reach`, and mostly more: a hub that is sure of its draft goes on, and is right more often.
        """
        apart = expected = self.rate * self.reach
        if self._usual is not None and self._usual.rate * self._usual.reach > 0.0:
            expected *= self._usual.gain / (self._usual.rate * self._usual.reach)
        return max(apart, min(1.0, self._gained.shrunk(expected, NUM_USUAL)))

    @property
    def error(self) -> float:
        """Standard error of the rate of all sequences, by the number of tokens that were tested.

        It leaves out how much sequences differ.
        """
        if self._usual is not None:
            return self._usual.error
        return sqrt(self.rate * (1.0 - self.rate) / (1.0 + self._accepted.num_trials))

    @property
    def is_idle(self) -> bool:
        """Whether the sequence had no draft for so long that one should be tried."""
        return self.num_idle_rounds >= IDLE_ROUNDS

    def add(self, num_drafted: int, num_accepted: int, num_requested: int | None = None) -> None:
        """Count one round. Behind the first rejected token nothing was tested.

        Args:
            num_drafted: tokens of its draft; 0 = it had none.
            num_requested: at least `num_drafted`; None = as many as were drafted.
        """
        if not num_drafted:
            self.num_idle_rounds += 1
            return
        self.num_idle_rounds = 0
        self._accepted.add(num_accepted, num_accepted + (num_accepted < num_drafted))
        ended_early = num_requested is not None and num_drafted < num_requested
        further = max(0, num_accepted - 1)
        self._gained.add(further, further + (num_accepted > 0 and (num_accepted < num_drafted or ended_early)))
        self._continued.add(num_drafted - 1, num_drafted - 1 + ended_early)
