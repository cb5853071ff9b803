"""A policy for each request that asks for one, and the target's own for all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from starspec.config import Policy
from starspec.policy.length.snapshot import Choice, LengthPolicy, RoundSnapshot


@dataclass(frozen=True, slots=True)
class ByRequest:
    """Each policy chooses for its own sequences together. It knows only the number of the others in the round.

    Args:
        default: of sequences that ask for none, or for one that does not fit this drafter.
        policies: all that fit it.
    """

    default: LengthPolicy
    policies: Mapping[Policy, LengthPolicy]

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy."""
        asked = [each.policy_asked if each.policy_asked in self.policies else None for each in snapshot.sequences]
        if not any(asked):
            return self.default.choose(snapshot)
        chosen: dict[int, Choice] = {}
        for name in dict.fromkeys(asked):
            indices = [index for index, other in enumerate(asked) if other == name]
            policy = self.default if name is None else self.policies[name]
            group = replace(snapshot, sequences=[snapshot.sequences[index] for index in indices])
            chosen |= zip(indices, policy.choose(group), strict=True)
        return [chosen[index] for index in range(len(asked))]
