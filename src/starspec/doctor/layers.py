"""Which of two readings of an EAGLE head's list of layers fits.

Both guess the same tokens of the same answers, and mostly they are right and wrong together. So they are compared where
exactly one of them is right: if they fitted equally well, each would be that one half of the time (sign test, McNemar
1947). Positions count as independent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

ERROR_RATE: Final = 0.01  # how often one of two readings that fit equally well may be called the better


@dataclass(frozen=True, slots=True)
class LayerReading:
    """One way to read which layers an EAGLE head was trained on."""

    feature_layers: tuple[int, ...]  # of the target's hidden states
    is_default: bool  # what is read if nobody says otherwise
    reason: str
    first_choice_rate: float  # of the greedy sample
    num_alone_right: int  # positions of it at which this reading is right and the other is not


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Two readings, compared."""

    used: LayerReading  # the default unless the other fits better
    other: LayerReading
    num_positions: int

    @property
    def is_settled(self) -> bool:
        """Whether the difference is more than chance would give; else the default is used for want of better."""
        return p_value(self.used.num_alone_right, self.other.num_alone_right) <= ERROR_RATE


def choose_layers(
    default: tuple[int, ...],
    reason: str,
    other: tuple[int, ...],
    default_right: Sequence[bool],
    other_right: Sequence[bool],
) -> LayerChoice:
    """Compare two readings.

    Args:
        reason: why the default is the default.
        default_right, other_right: whether each reading's first choice is right, at the same positions.
    """
    pairs = list(zip(default_right, other_right, strict=True))
    only_default, only_other = (sum(one > two for one, two in pairs), sum(one < two for one, two in pairs))
    own = LayerReading(default, True, reason, _share(default_right), only_default)
    theirs = LayerReading(other, False, "the other reading of its list", _share(other_right), only_other)
    if only_other > only_default and p_value(only_default, only_other) <= ERROR_RATE:
        return LayerChoice(theirs, own, len(pairs))
    return LayerChoice(own, theirs, len(pairs))


def p_value(num_one: int, num_other: int) -> float:
    """How likely so uneven a split, either way, is between two equals: the two-sided binomial test of one half."""
    num = num_one + num_other
    tail = sum(comb(num, count) for count in range(min(num_one, num_other) + 1))
    return min(1.0, 2 * tail / (1 << num))


def _share(is_right: Sequence[bool]) -> float:
    return sum(is_right) / max(1, len(is_right))
