"""AdaEDL: a draft ends where the draft model is unsure (Agrawal, Jeon, Lee 2024, arXiv 2410.18351).

A token is accepted with a probability of at least `1 - sqrt(GAMMA * entropy)`, where the entropy is that of the draft's
distribution. Drafting stops before a token for which this bound is below a threshold. The threshold follows the
acceptance of the sequence: if more is accepted than wanted, it falls, and drafts become longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Final

from starspec.policy.length.snapshot import Choice, RoundSnapshot, SequenceSnapshot
from starspec.policy.length.stop_threshold import StopThreshold
from starspec.speculation.budget import DraftBudget

GAMMA: Final = 0.2


def max_entropy(threshold: float) -> float:
    """The entropy, in nats, at which the bound is the threshold: above it, drafting stops."""
    return inf if threshold <= 0.0 else (1.0 - min(1.0, threshold)) ** 2 / GAMMA


@dataclass(frozen=True, slots=True)
class AdaEdl:
    """Chains that end by themselves, at most as long as the configured budget."""

    budget: DraftBudget

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy. A request's own depth is kept, and its drafts still end early."""
        return [self._choice_of(each) for each in snapshot.sequences]

    def _choice_of(self, sequence: SequenceSnapshot) -> Choice:
        asked = sequence.num_steps_asked
        budget = self.budget if asked is None else self.budget.with_steps(asked)
        threshold = (sequence.stop_threshold or StopThreshold()).value
        return Choice.of(sequence.fitting(replace(budget, max_entropy=max_entropy(threshold))), "doubt")
