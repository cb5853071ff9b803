"""What a step costs by its tokens, learnt from those that there were."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.length.step_cost import FEW, MAX_RATIO, NUM_STEPS, WEIGHT, StepCost

SIZES = np.arange(1, 30)


def predicted(cost: StepCost, size: int) -> float:
    return float(cost.predict(np.array([size]))[0])


def test_between_two_sizes_it_lies_between_them() -> None:
    cost = StepCost()
    cost.add(4, 0.1)
    cost.add(8, 0.3)
    assert predicted(cost, 4) == pytest.approx(0.1)
    assert predicted(cost, 6) == pytest.approx(0.2)


def test_what_was_not_measured_is_thought_cheap() -> None:
    """A larger step as cheap as the only one, a smaller one as cheap as its share: so both are tried."""
    cost = StepCost()
    assert not cost
    cost.add(8, 0.2)
    assert cost
    assert predicted(cost, 20) == pytest.approx(0.2)
    assert predicted(cost, 2) == pytest.approx(0.05)


@given(st.lists(st.tuples(st.integers(1, 29), st.floats(0.001, 1.0)), min_size=1, max_size=60))
def test_more_never_takes_less_and_all_lies_within_what_was_measured(notes: list[tuple[int, float]]) -> None:
    cost = StepCost()
    for size, seconds in notes:
        cost.add(size, seconds)
    found = cost.predict(SIZES)
    assert (np.diff(found) >= -1e-12).all()
    assert found[: max(size for size, _ in notes)].max() <= max(seconds for _, seconds in notes) + 1e-12
    assert found[notes[0][0] - 1] >= min(seconds for _, seconds in notes) - 1e-12


@given(st.lists(st.tuples(st.integers(1, 200), st.floats(0.001, 1.0)), min_size=1, max_size=60), st.floats(0.01, 300.0))
def test_one_size_alone_costs_what_it_costs_among_others(notes: list[tuple[int, float]], size: float) -> None:
    cost = StepCost()
    for each, seconds in notes:
        cost.add(each, seconds)
    assert cost.seconds(size) == pytest.approx(float(cost.predict(np.array([size]))[0]))


def test_a_size_between_two_may_cost_as_little_as_the_smaller_one() -> None:
    cost = StepCost()
    cost.add(4, 0.1)
    cost.add(12, 0.3)
    assert cost.hopeful(np.array([2.0, 4.0, 8.0, 11.0, 12.0, 20.0])).tolist() == pytest.approx(
        [0.05, 0.1, 0.1, 0.1, 0.3, 0.3]
    )
    cost.add(8, 0.15)
    assert float(cost.hopeful(np.array([8.0]))[0]) == pytest.approx(0.15)


def test_a_larger_step_than_any_is_on_the_line_through_the_smallest_and_the_largest() -> None:
    """Else drafts of a large batch promise much as soon as they are deep enough to make a step of unknown size."""
    cost = StepCost()
    for size, seconds in ((16, 0.2), (32, 0.35), (48, 0.44)):
        cost.add(size, seconds)
    assert predicted(cost, 80) == cost.seconds(80) == pytest.approx(0.44 + 32 * 0.24 / 32)
    assert cost.at_most(80) == pytest.approx(0.44 * 80 / 48)


def test_a_step_takes_at_most_no_less_than_expected() -> None:
    cost = StepCost()
    cost.add(16, 0.1)
    cost.add(32, 0.4)  # more than twice as long
    assert cost.at_most(48) == cost.seconds(48) == pytest.approx(0.7)


def test_a_batch_that_shrinks_is_not_thought_to_be_quick_without_drafts() -> None:
    """A step that reads weights takes as long for fewer tokens."""
    cost = StepCost()
    cost.add(8, 0.1)
    assert predicted(cost, 2) == pytest.approx(0.025), "a lower bound, while nothing else is known"
    cost.add(16, 0.12)
    assert predicted(cost, 2) == cost.seconds(2) == pytest.approx(0.085)
    cost.add(24, 0.5)
    assert predicted(cost, 2) == cost.seconds(2) == pytest.approx(0.025), "never below that bound"


def test_sizes_that_were_measured_in_the_wrong_order_have_their_common_mean() -> None:
    cost = StepCost()
    for _ in range(FEW):
        cost.add(4, 0.3)
    cost.add(5, 0.1)
    cost.add(20, 0.5)
    assert predicted(cost, 4) == predicted(cost, 5) == pytest.approx((FEW * 0.3 + 0.1) / (FEW + 1))
    assert predicted(cost, 20) == pytest.approx(0.5)


def test_steps_that_vary_make_no_size_look_cheap() -> None:
    """Else drafts of many sizes, each measured a few times, would look free beside plain steps."""
    rng, cost = random.Random(1), StepCost()
    for number in range(400):
        size = 4 if number % 2 else rng.randint(5, 12)
        cost.add(size, 0.1 * rng.uniform(0.7, 1.3))
    assert predicted(cost, 4) == pytest.approx(0.1, rel=0.06)
    assert predicted(cost, 8) == pytest.approx(0.1, rel=0.06)


def test_of_the_first_few_the_shortest_counts() -> None:
    cost = StepCost()
    for seconds in (5.0, 0.1, 0.2):
        cost.add(4, seconds)
    assert predicted(cost, 4) == pytest.approx(0.1)
    cost.add(4, 0.12)
    assert predicted(cost, 4) == pytest.approx(0.1 + 0.02 / 4)


def test_it_follows_what_changes() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.add(4, 0.1)
    for _ in range(round(4 / WEIGHT)):
        cost.add(4, 0.2)
    assert predicted(cost, 4) == pytest.approx(0.2, rel=0.05)


def test_one_interrupted_step_says_little() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.add(4, 0.1)
    cost.add(4, 60.0)
    assert predicted(cost, 4) == pytest.approx((1 + (MAX_RATIO - 1) * WEIGHT) * 0.1)
    assert MAX_RATIO * WEIGHT < 0.2, "else one step decides whether drafts pay"


@pytest.mark.parametrize("num_between", [1, 16])
def test_what_has_not_been_measured_for_long_is_forgotten(num_between: int) -> None:
    """By steps, however many of them tell anything."""
    cost = StepCost()
    cost.add(1, 0.5)
    for step in range(2 * NUM_STEPS):
        if step % num_between == 0:
            cost.add(4, 0.8)
        cost.end_step()
    assert predicted(cost, 1) == pytest.approx(0.2)
    assert predicted(cost, 4) == pytest.approx(0.8)


def test_what_was_measured_lately_is_kept() -> None:
    cost = StepCost()
    for _ in range(NUM_STEPS - 1):
        cost.end_step()
    cost.add(1, 0.5)
    cost.end_step()
    assert cost


def test_large_sizes_share_places() -> None:
    """A server of 256 rows has more sizes of steps than it measures."""
    cost = StepCost()
    for size in range(1, 3000):
        cost.add(size, 0.001 * size)
    assert len(cost._by_size) < 150
    for size in (7, 32, 100, 1000):
        assert predicted(cost, size) == pytest.approx(0.001 * size, rel=0.1)


def test_a_size_is_known_that_was_measured_a_few_times_lately() -> None:
    cost = StepCost()
    for num in range(FEW):
        assert not cost.is_known(4, num_steps=10), num
        cost.add(4, 0.1)
        cost.end_step()
    assert cost.is_known(4, num_steps=10)
    assert not cost.is_known(5, num_steps=10)
    for _ in range(9):
        cost.end_step()
    assert cost.is_known(4, num_steps=10)
    cost.end_step()
    assert not cost.is_known(4, num_steps=10)


def test_sizes_between_those_measured_are_covered() -> None:
    cost = StepCost()
    assert not cost.covers(4)
    cost.add(4, 0.1)
    assert cost.covers(4)
    cost.add(8, 0.1)
    assert [cost.covers(size) for size in (3, 4, 6, 8, 9)] == [False, True, True, True, False]
