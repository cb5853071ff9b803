"""DSDE: lengths from the stability of the divergence between target and draft (section III; no training, no costs).

A sequence whose divergence was low, and no less stable than before, gets long drafts; another one gets short drafts.
The mean of a round's lengths is the cap of all: a round waits for its longest draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from starspec.policy.length.divergence import DivergenceHistory
from starspec.policy.length.snapshot import Choice, RoundSnapshot, SequenceSnapshot
from starspec.speculation.budget import DraftBudget

MIN_LENGTH: Final = 2  # SL_min


def predicted_length(history: DivergenceHistory) -> float | None:
    """SL: the length of a sequence's next draft, before rounding (equations 2 and 8); None = it still calibrates."""
    if history.calibration is None:
        return None
    penalty = history.scale_factor * history.variance_ratio
    room = max(0.0, history.calibration.max_length - MIN_LENGTH)
    return MIN_LENGTH + max(0.0, 1.0 - penalty) * room


def length_cap(lengths: Sequence[float]) -> float:
    """SL_cap: the mean of the predicted lengths, which has the least squared error to them (equations 9 to 11)."""
    return sum(lengths) / len(lengths)


@dataclass(frozen=True, slots=True)
class Dsde:
    """Lengths by sequence and round.

    Args:
        budget: the most to ask for. In its first rounds a sequence asks for half of it: the longest length that they
            can show is twice as long (equation 1).
        is_capped: whether the mean is the cap.
    """

    budget: DraftBudget
    is_capped: bool = True

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy. A request's own depth is kept."""
        lengths = [self._length_of(each) for each in snapshot.sequences]
        pairs = zip(snapshot.sequences, lengths, strict=True)
        known = [length for each, length in pairs if length is not None and _counts(each)]
        cap = length_cap(known) if known and self.is_capped else None
        return [self._choice_of(*each, cap) for each in zip(snapshot.sequences, lengths, strict=True)]

    def _length_of(self, sequence: SequenceSnapshot) -> float | None:
        """The predicted length within the limit; None = it calibrates."""
        predicted = predicted_length(sequence.divergence)
        return None if predicted is None else min(predicted, self.budget.num_steps)

    def _choice_of(self, sequence: SequenceSnapshot, length: float | None, cap: float | None) -> Choice:
        most = self.budget.num_steps
        if sequence.num_steps_asked is not None:
            return Choice.of(sequence.fitting(self.budget.with_steps(sequence.num_steps_asked)))
        if length is None:
            return Choice.of(sequence.fitting(self.budget.with_steps(_rounded(most / 2))), "probe")
        capped = length if cap is None else min(length, cap)
        wanted = self.budget.with_steps(_rounded(capped))
        budget = sequence.fitting(wanted)
        return Choice.of(budget, "cap" if capped < length or length == most or budget != wanted else "doubt")


def _counts(sequence: SequenceSnapshot) -> bool:
    """Whether the sequence's length is a part of the mean: if it may have a draft, and this policy chooses how long."""
    return sequence.num_steps_asked is None and sequence.limit > 0


def _rounded(length: float) -> int:
    """The nearest whole number; halves go up, so that no half is lost in every round."""
    return floor(length + 0.5)
