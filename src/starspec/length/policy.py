"""How many draft tokens to ask for: a pure function of what is known of one sequence before its next round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from starspec.config import SpeculativeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSnapshot:
    """One sequence at the moment when its next proposal is asked for."""

    max_remaining_tokens: int  # tokens that max_tokens and the context still leave it, at least 1


class LengthPolicy(Protocol):
    """Chooses a speculation length for one sequence and one round.

    Implementations hold configuration only, so that servers and simulator decide alike from equal snapshots.
    """

    def choose(self, snapshot: LengthSnapshot) -> int:
        """Draft tokens to ask for, 0 = do not speculate this round."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the configured length, as far as the sequence can still use it."""

    num_speculative_tokens: int  # K >= 0

    def choose(self, snapshot: LengthSnapshot) -> int:
        """K, but never so many that they and the target's own token would exceed what remains."""
        return max(0, min(self.num_speculative_tokens, snapshot.max_remaining_tokens - 1))


def make_policy(config: SpeculativeConfig) -> LengthPolicy:
    """The policy that a speculative config names."""
    match config.length.policy:
        case "fixed":
            return FixedLength(config.num_speculative_tokens)
