"""Windows in flight: as many as the measured times and the acceptance say, and what they promise."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.pipe_depth import DEPTHS, MAX_DEPTH, MAX_ROUNDS, PipePlan, PipeTimes, Traversed, WindowTimes
from starspec.policy.traversal import Pipeline, StageTime

FOUR = Pipeline.even(4, StageTime(one_s=1.0), 5.0)  # a traversal takes 24 s


def ahead(alpha: float, draft_s: float, most: int, num_sequences: int = 1, ask_s: float = 0.0) -> PipePlan:
    return WindowTimes(FOUR, draft_s, ask_s).ahead(alpha, most, num_sequences).plan


def rate(plan: PipePlan, pipeline: Pipeline, alpha: float, draft_s: float) -> float:
    drafting_s = draft_s * (plan.num_draft_tokens + (plan.depth > 1))
    return pipeline.tokens_per_s(alpha, plan.num_draft_tokens, plan.depth, drafting_s)


def test_many_sequences_leave_each_other_less_room() -> None:
    depths = [ahead(0.95, 1.0, 4, each).depth for each in (1, 4, 64)]
    assert depths[0] > depths[1] > depths[2] == min(DEPTHS)


@pytest.mark.parametrize("num_sequences", [2, 4, 8])
@pytest.mark.parametrize("alpha", [0.7, 0.8, 0.9])
def test_windows_of_several_sequences_do_not_queue_at_a_stage_that_is_never_idle(
    num_sequences: int, alpha: float
) -> None:
    plan = ahead(alpha, 0.1, 8, num_sequences, ask_s=0.4)
    assert num_sequences * plan.depth <= FOUR.traversal_s(1)  # each computes for 1 s


def test_no_more_windows_are_in_flight_than_are_of_use() -> None:
    """At 0.8 few windows with 8 draft tokens are accepted whole, and hardly three of them behind one another."""
    assert 2 <= ahead(0.8, 0.1, 8).depth <= 4


def test_with_low_acceptance_windows_in_flight_promise_no_gain() -> None:
    for alpha in (0.0, 0.1, 0.3):
        times = WindowTimes(FOUR, 0.1)
        assert times.ahead(alpha, 8).tokens_per_s < 1.05 * times.synchronous(alpha, 8).tokens_per_s


def test_high_acceptance_and_a_draft_that_takes_time_fill_the_pipe() -> None:
    times = WindowTimes(FOUR, 1.0)
    promise = times.ahead(0.9, 8)
    assert promise.plan.depth > 2
    assert promise.tokens_per_s > 1.5 * times.synchronous(0.9, 8).tokens_per_s
    assert rate(promise.plan, FOUR, 0.9, 1.0) > 1.5 * rate(times.synchronous(0.9, 8).plan, FOUR, 0.9, 1.0)


def test_with_one_stage_and_a_draft_that_takes_no_time_nothing_is_gained_in_flight() -> None:
    times = WindowTimes(Pipeline.even(1, StageTime(one_s=1.0), 0.0), 0.0)
    assert times.ahead(0.9, 8).tokens_per_s < times.synchronous(0.9, 8).tokens_per_s


@given(st.floats(0.0, 0.99), st.floats(0.0, 2.0), st.floats(0.0, 10.0), st.integers(0, 8))
def test_plans_keep_their_limits_and_without_windows_in_flight_the_length_is_the_best(
    alpha: float, draft_s: float, link_s: float, most: int
) -> None:
    pipeline = Pipeline.even(4, StageTime(one_s=1.0), link_s)
    times = WindowTimes(pipeline, draft_s)
    in_flight, synchronous = times.ahead(alpha, most).plan, times.synchronous(alpha, most)
    assert max(in_flight.num_draft_tokens, synchronous.plan.num_draft_tokens) <= most
    assert 2 <= in_flight.depth <= MAX_DEPTH
    best = max(rate(PipePlan(num, 1), pipeline, alpha, draft_s) for num in range(most + 1))
    assert rate(synchronous.plan, pipeline, alpha, draft_s) == pytest.approx(best)
    assert synchronous.tokens_per_s == pytest.approx(best)


def test_rounds_in_flight_follow_what_traversals_took_and_do_not_grow_by_their_own_queue() -> None:
    times = PipeTimes(3)
    assert times.num_rounds == 1
    times.note(Traversed(2.0, (1.0, 2.0, 1.0)))
    assert times.num_rounds == 3
    for _ in range(200):  # three in flight, and each waits a bit where no stage tells of it
        times.note(Traversed(times.num_rounds * 2.0 * 1.04 - 4.0, (1.0, 2.0, 1.0)))
    assert times.num_rounds == 3
    assert times.pipeline.traversal_s(1) == pytest.approx(6.24)


def test_rounds_in_flight_have_a_limit() -> None:
    times = PipeTimes(2)
    times.note(Traversed(100.0, (0.001, 0.001)))
    assert times.num_rounds == MAX_ROUNDS


@pytest.mark.parametrize("compute_s", [0.0, 5e-324])
@pytest.mark.parametrize("links_s", [0.0, 0.05])
def test_a_stage_that_says_that_it_takes_no_time_breaks_no_plan(compute_s: float, links_s: float) -> None:
    times = PipeTimes(2)
    times.note(Traversed(links_s, (compute_s, 0.0)))
    assert 1 <= times.num_rounds <= MAX_ROUNDS
    windows = WindowTimes(times.pipeline, 0.0)
    for promise in (windows.synchronous(0.8, 4), windows.ahead(0.8, 4)):
        assert 0.0 < promise.tokens_per_s < inf


def test_where_asking_takes_its_time_windows_are_longer() -> None:
    quick, slow = (ahead(0.95, 1.0, 8, ask_s=each) for each in (0.0, 2.0))
    assert slow.num_draft_tokens > quick.num_draft_tokens
    assert slow.depth < quick.depth
