"""To how many rows small forwards are padded, measured with a clock that the linears themselves move."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.models.batch import RowRange
from starspec.models.linear.interface import StepLinear
from starspec.models.numerics.row_counts import (
    ABOUT,
    MAX_S,
    NUM_PASSES,
    SAMPLE_BYTES,
    WIDEST,
    narrowest_of_the_quick,
    quickest_rows,
)


class Clocked:
    """Linears whose calls take a given time."""

    def __init__(self, seconds):
        self.now = 0.0
        self.seconds = seconds  # (rows, calls of that many rows before) -> seconds
        self.calls = []

    def linear(self, num_bytes=1):
        return StepLinear(self.call, 4, num_bytes)

    def call(self, x):
        self.now += self.seconds(len(x), self.calls.count(len(x)))
        self.calls.append(len(x))
        return x

    def clock(self):
        return self.now

    def quickest(self, rows, linears=None):
        return quickest_rows(linears or [self.linear()], rows, torch.float32, self.clock)


def test_small_forwards_are_padded_to_the_narrowest_of_the_quick():
    steps = Clocked(lambda rows, _: {2: 0.012, 3: 0.011, 4: 0.0104, 5: 0.01}.get(rows, 0.0101))
    assert steps.quickest(RowRange(2, 22)) == RowRange(4, 22)


def test_nothing_is_padded_further_where_more_rows_cost_more():
    steps = Clocked(lambda rows, _: 1.0 + rows / 100)
    assert steps.quickest(RowRange(2, None)) == RowRange(2, None)


def test_a_busy_moment_decides_nothing():
    steps = Clocked(lambda rows, before: 0.01 * rows + 0.1 * (before < NUM_PASSES - 1 and rows == 2))
    assert steps.quickest(RowRange(2, 22)) == RowRange(2, 22)


def test_a_range_that_ends_early_is_not_left():
    steps = Clocked(lambda rows, _: 1.0 / rows)
    assert steps.quickest(RowRange(2, 6)) == RowRange(6, 6)
    assert steps.quickest(RowRange(2, 64)) == RowRange(WIDEST, 64)


def test_a_range_that_begins_wide_is_left_alone():
    steps = Clocked(lambda rows, _: 1.0)
    assert steps.quickest(RowRange(9, 22)) == RowRange(9, 22)
    assert not steps.calls


def test_on_a_slow_processor_each_row_count_is_tried_once():
    steps = Clocked(lambda rows, _: MAX_S / rows)
    assert steps.quickest(RowRange(2, 4)) == RowRange(4, 4)
    assert steps.calls == [2, 3, 4]


def test_a_large_model_is_tried_on_a_part_of_its_weights():
    steps = Clocked(lambda rows, _: 0.001)
    steps.quickest(RowRange(2, 3), [steps.linear(SAMPLE_BYTES // 4) for _ in range(40)])
    assert len(steps.calls) == 4 * 2 * NUM_PASSES


@given(st.dictionaries(st.integers(1, 8), st.floats(1e-6, 10.0), min_size=1))
def test_what_is_chosen_is_quick_and_nothing_narrower_is(seconds):
    chosen = narrowest_of_the_quick(seconds)
    limit_s = ABOUT * min(seconds.values())
    assert seconds[chosen] <= limit_s
    assert all(seconds[width] > limit_s for width in seconds if width < chosen)
