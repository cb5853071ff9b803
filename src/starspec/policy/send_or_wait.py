"""Whether a target that waits should get the chain that is ready now, or wait for one more draft token."""

from __future__ import annotations

from typing import Final

from starspec.config import AheadMode
from starspec.policy.estimators import DecayedRatio

FADE: Final = 0.97  # of all verdicts, with each newer one
MOST_STEP_WAITED_FOR: Final = 0.5  # of a draft step: the rest of it may be waited for (benchmarks/async/chain_rule.py)
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

    def pays_to_send(
        self, num_tokens: int, step_s: float, running_s: float, away_s: float | None, mode: AheadMode
    ) -> bool:
        """Whether a target should get the first `num_tokens` of its chain now.

        Args:
            step_s: as in `pays_to_wait`.
            running_s: seconds since the start of a running draft step that adds to the chain; 0 = none is.
            away_s: as in `pays_to_wait`; None = not known.
            mode: how its sequence runs ahead. A "chain" is sent unless the next token is nearly there.
        """
        if not num_tokens:
            return False
        if mode == "chain":
            return running_s <= MOST_STEP_WAITED_FOR * step_s
        return away_s is not None and not self.pays_to_wait(num_tokens, max(0.0, step_s - running_s), away_s)

    def pays_to_wait(self, num_tokens: int, step_s: float, away_s: float) -> bool:
        """Whether one more token is worth a draft step, to a target that could have `num_tokens` now.

        A round emits 1 + a + ... + a**n tokens in Z + w seconds. One more token adds a**(n + 1) tokens and takes t_s
        seconds. It is worth waiting for if these tokens per second are at least those of the round.

        Args:
            step_s: t_s, seconds of a draft step.
            away_s: Z + w: how long the target takes to answer, and how long it has waited.
        """
        return self._acceptance.value ** (num_tokens + 1) * away_s >= self.emitted(num_tokens) * step_s
