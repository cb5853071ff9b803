import itertools
from dataclasses import dataclass

import pytest
import torch

from starspec.models.linear.switching import NUM_PASSES, SAMPLE_BYTES, TRIED, UNTRIED, RowLimit, most_rows_for_few


class Clock:
    """A clock that linears move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Timed:
    """A linear that takes a while."""

    def __init__(self, clock, num_bytes, seconds_of):
        self.num_bytes, self._clock, self._seconds_of = num_bytes, clock, seconds_of
        self.calls = []

    def __call__(self, x):
        self.calls.append(tuple(x.shape))
        self._clock.now += self._seconds_of(len(x))
        return x


@dataclass
class Forms:
    for_few: Timed
    for_many: Timed
    in_features: int = 6
    dtype: torch.dtype = torch.bfloat16


def forms(clock, narrow_s, wide_s, num_bytes=SAMPLE_BYTES):
    return Forms(Timed(clock, num_bytes, narrow_s), Timed(clock, num_bytes, wide_s))


@pytest.mark.parametrize(
    ("narrow_s", "wide_s", "expected"),
    [
        (lambda rows: rows, lambda _: 5.0, 4),
        (lambda rows: rows, lambda _: 0.5, 0),  # the form for many is faster from the first row on
        (lambda rows: rows, lambda _: 0.97, 1),  # about as fast, and fewer bytes
        (lambda _: 1.0, lambda rows: 2.0 * rows, TRIED[-1]),
        (lambda rows: 1.0 if rows != 2 else 9.0, lambda _: 5.0, 1),  # row counts behind a gap are not measured
    ],
)
def test_the_narrow_form_serves_as_many_rows_as_it_is_quicker_for(narrow_s, wide_s, expected):
    clock = Clock()
    assert most_rows_for_few([forms(clock, narrow_s, wide_s)], clock) == expected


def test_a_busy_moment_decides_nothing():
    clock, calls = Clock(), itertools.count()

    def seconds(_):
        return 100.0 if next(calls) % NUM_PASSES == 1 else 1.0

    assert most_rows_for_few([forms(clock, seconds, lambda _: 2.0)], clock) == TRIED[-1]


def test_it_is_tried_once_as_soon_as_there_is_enough_to_try_it_on():
    clock = Clock()
    limit = RowLimit(clock=clock)
    all_forms = [forms(clock, lambda rows: rows, lambda _: 3.0, SAMPLE_BYTES // 2 + index) for index in range(4)]
    for each, expected in zip(all_forms, (UNTRIED, 2, 2, 2), strict=True):
        limit.try_on(each)
        assert limit.rows == expected
    assert [bool(each.for_few.calls) for each in all_forms] == [True, True, False, False]
    assert set(all_forms[0].for_few.calls) == {(1, 6), (2, 6), (4, 6)}
