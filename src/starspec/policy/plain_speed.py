"""How fast this target decodes without drafts, which a hub must beat. No clock of its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from starspec.policy.estimators import WindowMedian

NUM_ROUNDS: Final = 5  # the last plain rounds are remembered
MIN_ROUNDS: Final = 3  # before this many the speed is unknown
PERIOD_S: Final = 60.0  # load changes, so older measurements are repeated


class PlainSpeed:
    """Measured from rounds without any draft. Most of them happen anyway; a few are made for the measurement.

    The time of a round depends on how many sequences share it. So each size is measured separately, where a size is a
    range up to a factor of two.
    """

    def __init__(self) -> None:
        # by size
        self._round_s = defaultdict[int, WindowMedian](lambda: WindowMedian(NUM_ROUNDS, MIN_ROUNDS, PERIOD_S))
        self._known: dict[int, float] = {}  # size -> tokens per second; the size measured last comes last

    def tokens_per_s(self, num_sequences: int) -> float:
        """Speed of one sequence in rounds of this size; if unknown, of the size measured last; 0 = unknown."""
        last = next(reversed(self._known.values()), 0.0)
        return self._known.get(_size(num_sequences), last)

    def round_s(self, num_sequences: int) -> float | None:
        """Seconds of a round of this size; None = not measured."""
        known = self._known.get(_size(num_sequences))
        return None if known is None else 1.0 / known

    def add_round(self, verify_s: float, num_sequences: int, now: float) -> None:
        """A round without drafts took this long.

        Rounds older than PERIOD_S are forgotten. The speed learnt from them stays until there are enough new rounds.
        """
        size = _size(num_sequences)
        self._round_s[size].add(verify_s, now)
        if (seconds := self._round_s[size].value) is not None:
            self._known.pop(size, None)
            self._known[size] = 1.0 / seconds

    def is_due(self, num_sequences: int, now: float) -> bool:
        """Whether the next round, with this many sequences, should have no drafts, to measure its speed."""
        return self._round_s[_size(num_sequences)].num_young(now) < MIN_ROUNDS


def _size(num_sequences: int) -> int:
    return num_sequences.bit_length()
