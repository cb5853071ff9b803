"""Intervals on the machine's monotonic clock, which all its processes share."""

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


class Overhead:
    """The time in which requests waited and no forward ran.

        requests   ├───────a────────┤
                        ├───────b────────┤
        forwards     ├────┤    ├─────┤
        overhead   aa     ab  ab     bbb      a alone, shared by both, b alone

    Args:
        requests: in any order.
        forwards: ascending, without overlaps.
    """

    def __init__(self, requests: Sequence[Interval], forwards: Sequence[Interval]) -> None:
        edges = [(each.start_s, 1, 0) for each in requests] + [(each.end_s, -1, 0) for each in requests]
        edges += [(each.start_s, 0, 1) for each in forwards] + [(each.end_s, 0, -1) for each in forwards]
        self._at: dict[float, tuple[float, float]] = {}  # time -> (whole, shared) seconds of overhead before it
        whole_s = shared_s = before_s = 0.0
        num_requests = num_forwards = 0
        for now, request, forward in sorted(edges):
            if num_requests and not num_forwards:
                whole_s += now - before_s
                shared_s += (now - before_s) / num_requests
            self._at[now] = (whole_s, shared_s)
            num_requests, num_forwards, before_s = num_requests + request, num_forwards + forward, now

    def whole_s(self, request: Interval) -> float:
        """All overhead between start and end of a request: its delay beyond the forwards."""
        return self._at[request.end_s][0] - self._at[request.start_s][0]

    def share_s(self, request: Interval) -> float:
        """The request's equal share of that overhead among the requests that waited at the same time.

        The shares of all requests add up to the time that the hub lost."""
        return self._at[request.end_s][1] - self._at[request.start_s][1]
