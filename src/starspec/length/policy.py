"""How much to ask a drafter for: a pure function of what is known of one sequence before its next round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starspec.config import SpeculativeConfig
from starspec.speculation.budget import DraftBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSnapshot:
    """One sequence at the moment when its next proposal is asked for."""

    max_remaining_tokens: int  # tokens that max_tokens and the context still leave it, at least 1


class LengthPolicy(Protocol):
    """Chooses a speculation length for one sequence and one round.

    Implementations hold configuration only, so that servers and simulator decide alike from equal snapshots.
    """

    def choose(self, snapshot: LengthSnapshot) -> DraftBudget:
        """What to ask for; no draft tokens = do not speculate this round."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the configured budget, as far as the sequence can still use it."""

    budget: DraftBudget

    def choose(self, snapshot: LengthSnapshot) -> DraftBudget:
        """The budget, but never so deep that a path and the target's own token would exceed what remains."""
        num_steps = snapshot.max_remaining_tokens - 1
        return self.budget.limited(num_draft_tokens=self.budget.num_draft_tokens, num_steps=num_steps)


def make_policy(config: SpeculativeConfig) -> LengthPolicy:
    """The policy that a speculative config names."""
    match config.length.policy:
        case "fixed":
            return FixedLength(config.budget)
