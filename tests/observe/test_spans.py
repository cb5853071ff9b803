"""What spans have in common is what their moments have in common."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starspec.observe.spans import Coverage, intersection, length, union, without

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: (min(ends), max(ends))))


def moments(spans: list[tuple[float, float]]) -> set[int]:
    """The unit intervals in them, by their starts."""
    return {moment for start, end in spans for moment in range(int(start), int(end))}


@given(SPANS, SPANS)
def test_spans_are_sets_of_moments(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> None:
    first, second = union(some), union(others)
    assert moments(first) == moments(some)
    assert moments(intersection(first, second)) == moments(some) & moments(others)
    assert moments(without(first, second)) == moments(some) - moments(others)
    assert length(without(first, second)) == len(moments(some) - moments(others))


@given(SPANS, st.integers(-2, 22), st.integers(-2, 22))
def test_coverage_is_the_length_within(some: list[tuple[float, float]], start: int, end: int) -> None:
    span = (min(start, end), max(start, end))
    assert Coverage(union(some)).within(span) == len(moments(some) & moments([span]))
