"""Windows in flight: as many as the measured times and the acceptance say, and one where they would not pay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.pipe_depth import MAX_DEPTH, MAX_ROUNDS, PipePlan, PipeTimes, plan_windows
from starspec.policy.traversal import Pipeline, StageTime

FOUR = Pipeline.even(4, StageTime(one_s=1.0), 5.0)  # a traversal takes 24 s


def rate(plan: PipePlan, pipeline: Pipeline, alpha: float, draft_s: float) -> float:
    drafting_s = draft_s * (plan.num_draft_tokens + (plan.depth > 1))
    return pipeline.tokens_per_s(alpha, plan.num_draft_tokens, plan.depth, drafting_s)


def test_many_sequences_leave_each_other_less_room() -> None:
    depths = [plan_windows(FOUR, 0.95, 1.0, 4, MAX_DEPTH, each).depth for each in (1, 4, 64)]
    assert depths[0] > depths[1] > depths[2] == 1


@pytest.mark.parametrize("num_sequences", [2, 4, 8])
@pytest.mark.parametrize("alpha", [0.7, 0.8, 0.9])
def test_windows_of_several_sequences_do_not_queue_at_a_stage_that_is_never_idle(
    num_sequences: int, alpha: float
) -> None:
    plan = plan_windows(FOUR, alpha, 0.1, 8, MAX_DEPTH, num_sequences, ask_s=0.4)
    assert num_sequences * plan.depth <= FOUR.traversal_s(1)  # each computes for 1 s


def test_no_more_windows_are_in_flight_than_are_of_use() -> None:
    """At 0.8 few windows with 8 draft tokens are accepted whole, and hardly three of them behind one another."""
    assert 2 <= plan_windows(FOUR, 0.8, 0.1, 8, MAX_DEPTH).depth <= 4


def test_low_acceptance_means_depth_1() -> None:
    for alpha in (0.0, 0.1, 0.3):
        assert plan_windows(FOUR, alpha, 0.1, 8, MAX_DEPTH).depth == 1


def test_high_acceptance_and_a_draft_that_takes_time_fill_the_pipe() -> None:
    plan = plan_windows(FOUR, 0.9, 1.0, 8, MAX_DEPTH)
    assert plan.depth > 2
    assert rate(plan, FOUR, 0.9, 1.0) > 1.5 * rate(plan_windows(FOUR, 0.9, 1.0, 8, 1), FOUR, 0.9, 1.0)


def test_with_one_stage_and_a_draft_that_takes_no_time_nothing_is_in_flight() -> None:
    assert plan_windows(Pipeline.even(1, StageTime(one_s=1.0), 0.0), 0.9, 0.0, 8, MAX_DEPTH).depth == 1


@given(st.floats(0.0, 0.99), st.floats(0.0, 2.0), st.floats(0.0, 10.0), st.integers(0, 8), st.integers(1, MAX_DEPTH))
def test_a_plan_keeps_its_limits_and_with_depth_1_it_is_the_best_synchronous_length(
    alpha: float, draft_s: float, link_s: float, most: int, max_depth: int
) -> None:
    pipeline = Pipeline.even(4, StageTime(one_s=1.0), link_s)
    plan = plan_windows(pipeline, alpha, draft_s, most, max_depth)
    assert plan.num_draft_tokens <= most
    assert plan.depth <= max_depth
    if plan.depth == 1:
        synchronous = max(rate(PipePlan(num, 1), pipeline, alpha, draft_s) for num in range(most + 1))
        assert rate(plan, pipeline, alpha, draft_s) == pytest.approx(synchronous)


def test_rounds_in_flight_follow_what_traversals_took_and_do_not_grow_by_their_own_queue() -> None:
    times = PipeTimes(3)
    assert times.num_rounds == 1
    times.note(6.0, (1.0, 2.0, 1.0))
    assert times.num_rounds == 3
    for _ in range(200):  # three in flight: each waits until the slowest stage is free
        times.note(times.num_rounds * 2.0 * 1.04, (1.0, 2.0, 1.0))
    assert times.num_rounds == 3
    assert times.pipeline.traversal_s(1) == pytest.approx(6.24)


def test_rounds_in_flight_have_a_limit() -> None:
    times = PipeTimes(2)
    times.note(100.0, (0.001, 0.001))
    assert times.num_rounds == MAX_ROUNDS


def test_where_asking_takes_its_time_windows_are_longer() -> None:
    quick, slow = (plan_windows(FOUR, 0.95, 1.0, 8, MAX_DEPTH, ask_s=each) for each in (0.0, 2.0))
    assert slow.num_draft_tokens > quick.num_draft_tokens
    assert slow.depth < quick.depth
