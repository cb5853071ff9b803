"""How many sequences may share a draft step, from the measured cost of draft steps of each size (ADR 16).

A larger draft step pays only if it costs less per sequence than a smaller one: otherwise it is better to run several
smaller ones. On most machines larger draft steps always pay, and there is no limit.

    sequences in a draft step     1     2    3-4   5-8   9-16        sizes that are measured together
    seconds for each             10     6     4     3     5          so at most 8 share a draft step
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from starspec.policy.estimators import WindowMedian

NUM_REMEMBERED: Final = 15  # draft steps of each size: one slow moment does not change their median
REVIEW_STEPS: Final = 64  # draft steps between two reviews; after each, one of twice the limit tests whether it pays
TO_LIMIT: Final = 1.25  # times the lowest cost per sequence: a size that costs more is too large ...
TO_LIFT: Final = 1.1  # ... until it costs less than this again


class BatchLimit:
    """Learns from the costs of draft steps without prompts."""

    def __init__(self) -> None:
        self._costs: defaultdict[int, WindowMedian] = defaultdict(  # size -> seconds per sequence
            lambda: WindowMedian(NUM_REMEMBERED, min_count=NUM_REMEMBERED)
        )
        self._limit: int | None = None
        self._num_steps = 0

    @property
    def max_sequences(self) -> int | None:
        """Most sequences in the next draft step; None = all that wait."""
        if self._limit is None or self._num_steps % REVIEW_STEPS:
            return self._limit
        return 2 * self._limit

    def add(self, num_sequences: int, seconds: float) -> None:
        """Count one draft step."""
        self._costs[_size(num_sequences)].add(seconds / num_sequences)
        self._num_steps += 1
        if self._num_steps % REVIEW_STEPS == 0:
            self._limit = self._choose()

    def _choose(self) -> int | None:
        known = {size: cost for size, costs in self._costs.items() if (cost := costs.value) is not None}
        if not known:
            return None
        least = min(known.values())
        paying = max(size for size, cost in known.items() if cost <= self._bound(size) * least)
        return None if paying == max(known) else paying

    def _bound(self, size: int) -> float:
        return TO_LIFT if self._limit is not None and size > self._limit else TO_LIMIT


def _size(num_sequences: int) -> int:
    """The least power of two that is not less than `num_sequences`."""
    return 1 << (num_sequences - 1).bit_length()
