"""How many sessions may share a layer, from what layers of each size have cost (ADR 16).

Adding a session pays as long as the layer costs less for each of its sessions than a smaller one did: those that do not
fit share a layer of their own, at that price. On most machines that is always so, and there is no limit.

    sessions in a layer      1     2    3-4   5-8   9-16        sizes that are measured together
    seconds for each        10     6     4     3     5          at most 8 share a layer
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

NUM_LAYERS: Final = 15  # of each size that are remembered: one slow moment is no median
REVIEW_LAYERS: Final = (
    64  # between two looks; after each, one layer of twice the limit shows whether that would pay by now
)
TO_LIMIT: Final = 1.25  # times the least cost of a session: a size that costs more is too large ...
TO_LIFT: Final = 1.1  # ... until it costs less than this again


class BatchLimit:
    """Watches the costs of layers without prompts."""

    def __init__(self) -> None:
        self._costs: dict[int, deque[float]] = {}  # size -> seconds a session of the last layers
        self._limit: int | None = None
        self._num_layers = 0

    @property
    def max_sessions(self) -> int | None:
        """In the next layer; None = all that wait."""
        if self._limit is None or self._num_layers % REVIEW_LAYERS:
            return self._limit
        return 2 * self._limit

    def add(self, num_sessions: int, seconds: float) -> None:
        """Count one layer."""
        size = _size(num_sessions)
        if size not in self._costs:
            self._costs[size] = deque(maxlen=NUM_LAYERS)
        self._costs[size].append(seconds / num_sessions)
        self._num_layers += 1
        if self._num_layers % REVIEW_LAYERS == 0:
            self._limit = self._choose()

    def _choose(self) -> int | None:
        known = {size: median(costs) for size, costs in self._costs.items() if len(costs) == NUM_LAYERS}
        if not known:
            return None
        least = min(known.values())
        paying = max(size for size, cost in known.items() if cost <= self._bound(size) * least)
        return None if paying == max(known) else paying

    def _bound(self, size: int) -> float:
        return TO_LIFT if self._limit is not None and size > self._limit else TO_LIMIT


def _size(num_sessions: int) -> int:
    """The power of two that is not less."""
    return 1 << (num_sessions - 1).bit_length()
