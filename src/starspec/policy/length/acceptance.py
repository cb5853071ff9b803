"""What a sequence's drafts achieved so far."""

from __future__ import annotations

from typing import Final

from starspec.policy.estimators import DecayedRatio

FIRST_RATE: Final = 0.8  # before the first verdict
FIRST_REACH: Final = 1.0
NUM_PRIOR: Final = 2.0  # draft tokens that these count as
FADE: Final = 0.9  # of all drafts, with each newer one
IDLE_ROUNDS: Final = 8  # without a draft, before the sequence is idle


class Acceptance:
    """How many draft tokens of one sequence were accepted, how long its drafts were, and when it had the last one.

    Args:
        first_rate: `rate` before the first verdict.
        first_reach: `reach` before the first verdict.
    """

    def __init__(self, first_rate: float = FIRST_RATE, first_reach: float = FIRST_REACH) -> None:
        self._accepted = DecayedRatio(FADE, first_rate, NUM_PRIOR)
        self._continued = DecayedRatio(FADE, first_reach, NUM_PRIOR)
        self._num_idle_rounds = 0

    @property
    def rate(self) -> float:
        """Probability that a draft token is accepted if all before it are."""
        return self._accepted.value

    @property
    def reach(self) -> float:
        """Probability that a draft goes on after a token, if more was requested: a hub ends drafts when in doubt."""
        return self._continued.value

    @property
    def is_idle(self) -> bool:
        """Whether the sequence had no draft for so long that one should be tried."""
        return self._num_idle_rounds >= IDLE_ROUNDS

    def add(self, num_drafted: int, num_accepted: int, num_requested: int | None = None) -> None:
        """Count one round. Behind the first rejected token nothing was tested.

        Args:
            num_drafted: tokens of its draft; 0 = it had none.
            num_requested: at least `num_drafted`; None = as many as were drafted.
        """
        if not num_drafted:
            self._num_idle_rounds += 1
            return
        self._num_idle_rounds = 0
        self._accepted.add(num_accepted, num_accepted + (num_accepted < num_drafted))
        ended_early = num_requested is not None and num_drafted < num_requested
        self._continued.add(num_drafted - 1, num_drafted - 1 + ended_early)
