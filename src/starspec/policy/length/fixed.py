"""Length policies that learn nothing: the configured budget, or none in large batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starspec.policy.length.snapshot import OFF, Choice, LengthPolicy, RoundSnapshot, SequenceSnapshot
from starspec.speculation.budget import DraftBudget


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the configured budget, or the request's own depth, as far as the sequence can still use it."""

    budget: DraftBudget

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy."""
        return [self._choice_of(each) for each in snapshot.sequences]

    def _choice_of(self, sequence: SequenceSnapshot) -> Choice:
        asked = sequence.num_steps_asked
        return Choice.of(sequence.fitting(self.budget if asked is None else self.budget.with_steps(asked)))


class BatchSizes(NamedTuple):
    """One row of vLLM's `num_speculative_tokens_per_batch_size`."""

    first: int
    last: int  # included
    num_steps: int


@dataclass(frozen=True, slots=True)
class ByBatchSize:
    """A policy with another depth for each number of sequences in a round, from a table.

    Args:
        make: the policy with a budget.
        budget: where the table has no row; its width is that of all.
    """

    make: Callable[[DraftBudget], LengthPolicy]
    budget: DraftBudget
    table: tuple[BatchSizes, ...]

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy."""
        found = (row.num_steps for row in self.table if row.first <= snapshot.num_sequences <= row.last)
        return self.make(self.budget.with_steps(next(found, self.budget.num_steps))).choose(snapshot)


@dataclass(frozen=True, slots=True)
class InSmallBatches:
    """Another policy in rounds of few sequences, nothing in larger ones.

    A forward over many sequences is no longer bound by reading weights: then each draft token costs what it computes.
    """

    policy: LengthPolicy
    max_sequences: int

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy. The bound also overrules a request's own depth."""
        if snapshot.num_sequences > self.max_sequences:
            return [OFF] * len(snapshot.sequences)
        return self.policy.choose(snapshot)
