"""Whether a target that waits should get the chain that is ready now, or wait for one more draft token."""

from __future__ import annotations

from typing import Final

from starspec.policy.estimators import DecayedRatio

FADE: Final = 0.97  # of all verdicts, with each newer one
PRIOR_ACCEPTANCE, NUM_PRIOR = 0.75, 4.0  # before the first verdict; it counts as so many tokens


class SendOrWait:
    """What was accepted of one sequence's chains, and what that says about the next one."""

    def __init__(self) -> None:
        self._acceptance = DecayedRatio(FADE, PRIOR_ACCEPTANCE, NUM_PRIOR)

    def add_verdict(self, num_proposed: int, num_accepted: int) -> None:
        """Count one verdict on a chain of `num_proposed` tokens, which may be 0.

        Behind the first rejected token nothing was tested.
        """
        if num_proposed:
            self._acceptance.add(min(num_proposed, num_accepted), min(num_proposed, num_accepted + 1))

    def emitted(self, num_tokens: int) -> float:
        """Expected tokens of a round with a chain of so many: 1 + a + ... + a**n, where a is the acceptance rate."""
        rate = self._acceptance.value
        return sum(rate**depth for depth in range(num_tokens + 1))

    def pays_to_wait(self, num_tokens: int, step_s: float, away_s: float) -> bool:
        """Whether one more token is worth a draft step, to a target that could have `num_tokens` now.

        A round emits 1 + a + ... + a**n tokens in Z + w seconds. One more token adds a**(n + 1) tokens and takes t_s
        seconds. It is worth waiting for if these tokens per second are at least those of the round.

        Args:
            step_s: t_s, seconds of a draft step.
            away_s: Z + w: how long the target takes to answer, and how long it has waited.
        """
        return self._acceptance.value ** (num_tokens + 1) * away_s >= self.emitted(num_tokens) * step_s
