"""Intervals of the machine's monotonic clock, which all processes of one machine share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """Seconds of time.monotonic."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def uncovered_s(interval: Interval, others: Sequence[Interval]) -> float:
    """The part of an interval that lies in none of the others.

    Args:
        others: ascending, without overlaps.
    """
    first = bisect_right(others, interval.start_s, key=lambda other: other.end_s)
    covered_s = 0.0
    for other in others[first:]:
        if other.start_s >= interval.end_s:
            break
        covered_s += min(interval.end_s, other.end_s) - max(interval.start_s, other.start_s)
    return interval.length_s - covered_s


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed. Needs one value."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]
