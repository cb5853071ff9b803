"""How many nodes a draft step has that nobody waits for, from what draft steps of each size have taken (ADR 21).

The widest draft step that takes at most MOST_TIMES as long as one node for each sequence; and if that much takes more
than MOST_TIMES as long as one node alone, the widest that does not, and sequences take turns.

    nodes in a draft step   1    2    3    4   5-6  7-8  9-12        sizes that are measured apart
    milliseconds      10   11   12   13   15   17   21         one sequence: at most six

Why a bound on the draft step: whoever asks while it runs waits for half of it on average, and finds at best one draft
step of his own done. Up to twice the time of a node that is no loss. Below it wide draft steps prepare for more
verdicts, narrow ones sooner for the likeliest; by simulation this bound is near the best of both
(`tests/draft/test_ahead_width.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from starspec.policy.estimators import WindowMedian

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # nodes
NUM_ENOUGH: Final = 12  # nodes; with more of one sequence, so few verdicts more are prepared for
MOST_TIMES: Final = 1.6
NUM_REMEMBERED: Final = 15  # of each size that are remembered ...
MIN_STEPS: Final = 3  # ... and from which on it is known: one slow moment is no median
REVIEW_STEPS: Final = 64  # ahead; then one of the size that was too slow: it may be fast enough by now


class AheadWidth:
    """Watches what draft steps take. Begins with one node, and tries one size after the other."""

    def __init__(self) -> None:
        self._seconds = {size: WindowMedian(NUM_REMEMBERED, MIN_STEPS) for size in SIZES}
        self._num_ahead = 0

    def add(self, num_nodes: int, seconds: float) -> None:
        """Count one draft step without prompts, whether anybody waited for it or not."""
        self._seconds[_size(num_nodes)].add(seconds)

    def choose(self, num_sequences: int) -> int:
        """Nodes of the next draft step ahead of so many sequences, at most. Effects: it counts as one draft step."""
        self._num_ahead += 1
        width, bound_s = 0, 0.0
        for wider in sorted({*SIZES, num_sequences}):
            seconds = self._seconds[_size(wider)].value
            if wider > max(NUM_ENOUGH, num_sequences):
                break
            if seconds is None:
                return wider
            if width and seconds > bound_s:
                return wider if self._num_ahead % REVIEW_STEPS == 0 else width
            width = wider
            if width in (1, num_sequences):
                bound_s = MOST_TIMES * seconds
        return width


def _size(num_nodes: int) -> int:
    """The size that a draft step is measured as: the least of SIZES that is not less; the largest for all beyond."""
    return SIZES[min(bisect_left(SIZES, num_nodes), len(SIZES) - 1)]
