"""What a round costs, learnt from rounds whose parts are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from starspec.policy.deadline import Round
from starspec.policy.length.round_cost import NO_WAIT, NUM_ROUNDS, RoundCost, RoundTimes

parts = st.sampled_from([0.0, 0.002, 0.02])
costs = st.builds(RoundCost, parts, parts, parts, st.just(8), num_paid=st.just(inf))
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def learn(true: RoundCost, rounds: Sequence[Sequence[int]]) -> RoundTimes:
    times = RoundTimes()
    for each in rounds:
        times.add(Round(each, true.seconds_of(each)))
    return times


@given(costs, st.integers(0, 999))
def test_from_rounds_of_many_kinds_each_part_is_learnt(true: RoundCost, seed: int) -> None:
    assume(any(true[:3]))
    rng = random.Random(seed)
    rounds = [[rng.randint(1, 4) for _ in range(rng.randint(1, 6))] for _ in range(60)]
    learnt = learn(true, [[1], [4], [1] * 6, *rounds]).cost
    assert learnt[:3] == pytest.approx(true[:3], abs=0.03 * sum(true[:3]))
    assert learnt.deepest == max(max(each) for each in rounds[-NUM_ROUNDS:])


@given(costs, lengths, st.integers(1, 60))
def test_a_round_as_all_before_it_costs_what_they_did(true: RoundCost, each: list[int], num: int) -> None:
    learnt = learn(true, [each] * num).cost
    assert learnt.seconds_of(each) == pytest.approx(true.seconds_of(each), rel=0.01, abs=1e-9)
    assert min(learnt) >= 0.0


def test_steps_that_are_wider_than_any_measured_one_cost_at_most_in_proportion() -> None:
    """From rounds of one sequence it is not known what sixteen of them share."""
    alone = learn(RoundCost(0.0, 0.1, 0.0, deepest=4), [[2]] * 8).cost
    assert alone.at_most(2.0, 2.0) == pytest.approx(0.2, rel=0.01)
    assert alone.at_most(3.0, 48.0) == pytest.approx(16 * 0.3, rel=0.01)
    together = learn(RoundCost(0.0, 0.1, 0.0, deepest=4), [[2], [2] * 8] * 8).cost
    assert together.at_most(3.0, 48.0) == pytest.approx(2 * 0.3, rel=0.05)


@pytest.mark.parametrize(("depths", "expected_s"), [([2], 0.2), ([1, 2], 0.8)], ids=["one depth", "two depths"])
def test_deeper_drafts_than_any_are_free_only_while_one_depth_was_measured(
    depths: list[int], expected_s: float
) -> None:
    learnt = learn(RoundCost(0.0, 0.1, 0.0, deepest=8), [[depth] for depth in depths * 8]).cost
    assert learnt.seconds_of([8]) == pytest.approx(expected_s, rel=0.01)
    assert learnt.at_most_of([8]) == pytest.approx(0.8, rel=0.01)


@pytest.mark.parametrize("depth", [3, 10])
def test_a_round_that_is_much_deeper_than_any_before_takes_as_long_as_it_should(depth: int) -> None:
    """It is not cut as an interrupted one is: that would make draft steps look cheaper, and the way there dearer."""
    learnt = learn(RoundCost(0.0, 0.1, 0.0, deepest=depth), [*([1] for _ in range(20)), [depth, 1]]).cost
    assert learnt.step_s == pytest.approx(0.1, rel=0.01)


@given(st.lists(st.tuples(lengths, st.floats(1e-4, 1.0)), min_size=1, max_size=60))
def test_whatever_rounds_took_no_part_is_negative_and_no_round_is_free(rounds: list[tuple[list[int], float]]) -> None:
    times = RoundTimes()
    for each, seconds in rounds:
        times.add(Round(each, seconds))
    assert min(times.cost) >= 0.0
    assert times.cost.seconds_of([1]) > 0.0


def test_where_rounds_do_not_tell_the_parts_apart_fewer_steps_are_thought_cheaper_so_that_they_are_tried() -> None:
    assert learn(RoundCost(0.1, 0.0, 0.0, deepest=8), [[4, 4]] * 20).cost.step_s == pytest.approx(0.025, abs=0.001)


def test_before_any_round_nothing_is_known_to_cost() -> None:
    assert RoundTimes().cost == NO_WAIT


def test_one_interrupted_round_says_little_and_the_older_the_less() -> None:
    usual = RoundCost(0.0, 0.01, 0.0, deepest=8)
    times = learn(usual, [[4]] * 20)
    times.add(Round([4], 5.0))
    assert times.cost.step_s <= 0.012
    for _ in range(60):
        times.add(Round([4], 0.04))
    assert times.cost.step_s == pytest.approx(0.01, rel=0.02)


def test_one_draft_after_a_long_pause_does_not_make_drafting_look_expensive() -> None:
    usual = RoundCost(0.0, 0.01, 0.0, deepest=8)
    times = learn(usual, [[2], [4], [2], [4]] * 3)
    for _ in range(5):
        times.add(Round([2], 0.02 + 0.09, num_caught_up=90))
        assert times.cost.seconds_of([2]) == pytest.approx(0.02, rel=0.1)
    assert times.cost.seconds_of([2], 90) == pytest.approx(0.11, rel=0.1)


def test_a_hub_that_became_slower_is_known_to_be_after_some_rounds() -> None:
    times = learn(RoundCost(0.0, 0.01, 0.0, deepest=8), [[4]] * 100)
    for _ in range(48):
        times.add(Round([4], 0.12))
    assert times.cost.step_s > 0.02


def test_what_is_caught_up_with_is_a_part_of_what_a_round_costs_at_most() -> None:
    cost = RoundCost(0.1, 0.2, 0.01, deepest=2, caught_up_s=0.003, widest=1.0)
    assert cost.at_most_of([1, 4], 100) == pytest.approx(cost.at_most(4, 5) + 0.3)
    assert cost.at_most_of([2], 100) == pytest.approx(cost.seconds_of([2], 100))
