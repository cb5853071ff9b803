"""How much to ask a drafter for: a pure function of what is known of one sequence before its next round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starspec.config import SpeculativeConfig
from starspec.speculation.budget import NO_DRAFT, DraftBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSnapshot:
    """One sequence at the moment when its next proposal is asked for."""

    max_remaining_tokens: int  # tokens that max_tokens and the context still leave it, at least 1
    num_steps_asked: int | None = None  # the request's own depth; None = the policy's
    num_sequences: int = 1  # of the round that the proposal is for, as far as is known


class LengthPolicy(Protocol):
    """Chooses a speculation length for one sequence and one round.

    Implementations hold configuration only, so that all decide alike from equal snapshots.
    """

    def choose(self, snapshot: LengthSnapshot) -> DraftBudget:
        """What to ask for; no draft tokens = do not speculate this round."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the configured budget, or the request's own depth, as far as the sequence can still use it."""

    budget: DraftBudget

    def choose(self, snapshot: LengthSnapshot) -> DraftBudget:
        """The budget, but never so deep that a path and the target's own token would exceed what remains."""
        asked = snapshot.num_steps_asked
        budget = self.budget if asked is None else self.budget.with_steps(asked)
        num_steps = snapshot.max_remaining_tokens - 1
        return budget.limited(num_steps=num_steps)


@dataclass(frozen=True, slots=True)
class InSmallBatches:
    """Another policy in rounds of few sequences, nothing in larger ones.

    A forward over many sequences is no longer bound by reading weights: then each draft token costs what it computes.
    """

    policy: LengthPolicy
    max_sequences: int

    def choose(self, snapshot: LengthSnapshot) -> DraftBudget:
        """Also overrules a request's own depth."""
        return NO_DRAFT if snapshot.num_sequences > self.max_sequences else self.policy.choose(snapshot)


def make_policy(config: SpeculativeConfig, max_num_seqs: int | None = None) -> LengthPolicy:
    """The policy that a speculative config names.

    Args:
        max_num_seqs: sequences of a round, at most; None = not known. More may hold rows and wait for their turn.
    """
    match config.length.policy:
        case "fixed":
            policy: LengthPolicy = FixedLength(config.budget)
    bound = config.disable_by_batch_size
    if bound is None or (max_num_seqs is not None and max_num_seqs <= bound):
        return policy
    return InSmallBatches(policy, bound)
