"""How many nodes a draft step has when the hub runs ahead, from the measured times of each size (ADR 21).

The draft step is the widest that takes at most MAX_RATIO times as long as a draft step with one node for each sequence.
There is one exception. If one node for each sequence already takes more than MAX_RATIO times as long as one node alone,
the draft step is the widest that takes at most MAX_RATIO times as long as one node alone, and sequences take turns.

    nodes in a draft step   1    2    3    4   5-6  7-8  9-12        sizes that are measured apart
    milliseconds           10   11   12   13   15   17   21          one sequence: at most six

Why there is a bound: a request that arrives during such a draft step waits for half of it on average, and gains one
draft step of its own at best. If the draft step takes at most twice as long as one node, that is not a loss. Within
this limit, a wide draft step prepares for more verdicts, and a narrow one is ready sooner for the likeliest verdict. In
a simulation, this bound was close to the best of both (`tests/policy/test_run_ahead_width.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from starspec.policy.estimators import WindowMedian

SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # nodes
NUM_ENOUGH: Final = 12  # nodes; more of one sequence prepare for hardly more verdicts
MAX_RATIO: Final = 1.6
NUM_REMEMBERED: Final = 15  # draft steps of each size
MIN_STEPS: Final = 3  # draft steps of a size, before its time is known
REVIEW_STEPS: Final = 64  # draft steps ahead; then one of the size that was too slow, which may be fast by now


class AheadWidth:
    """Learns what draft steps take. It begins with one node, and tries one size after the other."""

    def __init__(self) -> None:
        self._seconds = {size: WindowMedian(NUM_REMEMBERED, MIN_STEPS) for size in SIZES}
        self._num_ahead = 0

    def add(self, num_nodes: int, seconds: float) -> None:
        """Count one draft step without prompts, whether or not a request waited for it."""
        self._seconds[_size(num_nodes)].add(seconds)

    def choose(self, num_sequences: int) -> int:
        """Most nodes of the next draft step ahead of `num_sequences` sequences. Effects: counts it."""
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
                bound_s = MAX_RATIO * seconds
        return width


def share(num_nodes: int, num_sequences: int, num_served: int) -> int:
    """Nodes for the next sequence, if a draft step ahead of `num_sequences` sequences has `num_nodes` nodes.

    The first ones get one more where the nodes cannot be shared equally.

    Args:
        num_served: sequences that have their nodes already.
    """
    num_each, num_more = divmod(num_nodes, num_sequences)
    return num_each + (num_served < num_more)


def _size(num_nodes: int) -> int:
    """The size that a draft step is measured as: the least of SIZES that is not less, or else the largest."""
    return SIZES[min(bisect_left(SIZES, num_nodes), len(SIZES) - 1)]
