"""Spans of time in seconds: what they have in common, and how much of them lies within another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

Span = tuple[float, float]  # start and end, in seconds


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time without overlaps, in order."""
    whole: list[Span] = []
    for start, end in sorted(spans):
        if whole and start <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(whole[-1][1], end)
        else:
            whole.append((start, end))
    return whole


def intersection(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Args: both in order and without overlaps; so is the result."""
    shared, index = [], 0
    for start, end in some:
        while index < len(others) and others[index][1] <= start:
            index += 1
        for place in range(index, len(others)):
            other_start, other_end = others[place]
            if other_start >= end:
                break
            shared.append((max(start, other_start), min(end, other_end)))
    return shared


def without(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The first time, less the second. Args: as `intersection`."""
    edges = [edge for span in others for edge in span]
    gaps = zip([float("-inf"), *edges[1::2]], [*edges[::2], float("inf")], strict=True)
    return intersection(some, list(gaps))


def length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


class Coverage:
    """How much of any span is covered. Args: spans: in order and without overlaps."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._starts = [start for start, _ in spans]
        self._before = [0.0, *accumulate(end - start for start, end in spans)]  # [number of spans] -> their length

    def within(self, span: Span) -> float:
        """Seconds of the span that are covered."""
        return self._until(span[1]) - self._until(span[0])

    def _until(self, moment: float) -> float:
        num_begun = bisect_right(self._starts, moment)
        return self._before[num_begun] - (max(0.0, self._spans[num_begun - 1][1] - moment) if num_begun else 0.0)
