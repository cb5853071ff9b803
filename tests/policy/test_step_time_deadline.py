"""How long a step may wait, learnt from rounds and steps."""

from __future__ import annotations

import pytest

from starspec.policy.deadline import FIRST_STEP_WAIT_S, NUM_ROUNDS, SLACK, RecentRounds, Round, StepTimeDeadline

ONE = [1]


class Scene(StepTimeDeadline):
    """A deadline and the rounds that it learns from."""

    def __init__(self, fixed_s: float | None = None) -> None:
        super().__init__(fixed_s)
        self.rounds = RecentRounds()

    def of(self, lengths: list[int]) -> float:
        return self.seconds(lengths, self.rounds)


def test_slow_rounds_are_waited_for_no_longer_than_two_steps() -> None:
    deadline = Scene()
    for _ in range(20):
        deadline.note_step(0.020)
        deadline.rounds.add(Round(ONE, 0.5))
    assert deadline.of(ONE) == pytest.approx(0.040)


@pytest.mark.parametrize(("round_s", "step_s"), [(0.001, 0.020), (0.5, 0.001)])
def test_nothing_is_so_quick_that_a_wait_ends_before_five_milliseconds(round_s: float, step_s: float) -> None:
    deadline = Scene()
    deadline.note_step(step_s)
    deadline.rounds.add(Round(ONE, round_s))
    assert deadline.of(ONE) == pytest.approx(0.005)


def test_more_steps_and_more_rows_than_those_timed_may_take_that_much_longer() -> None:
    deadline = Scene()
    deadline.note_step(10.0)
    for _ in range(NUM_ROUNDS):
        deadline.rounds.add(Round([2], 0.020))
    assert deadline.of([2]) == pytest.approx(SLACK * 0.020)
    assert deadline.of([4]) == pytest.approx(SLACK * 0.040)
    assert deadline.of([2] * 3) == pytest.approx(SLACK * 0.060)
    assert deadline.of([1] * 3) == pytest.approx(SLACK * 0.060)  # fewer steps: no shorter than was seen
    assert deadline.of([1]) == pytest.approx(SLACK * 0.020)


def test_the_operators_own_deadline_is_kept_whatever_is_asked() -> None:
    deadline = Scene(0.123)
    deadline.rounds.add(Round(ONE, 9.0))
    assert deadline.of([9] * 9) == 0.123


def test_before_a_round_was_timed_a_usual_one_is_supposed() -> None:
    assert Scene().of(ONE) == FIRST_STEP_WAIT_S


def test_rounds_that_asked_for_about_as_much_count_and_not_what_smaller_ones_would_come_to() -> None:
    """A small round's fixed part does not grow with what is asked for."""
    deadline = Scene()
    deadline.note_step(10.0)
    deadline.rounds.add(Round([4] * 32, 0.030))
    for _ in range(3):
        deadline.rounds.add(Round([2], 0.010))
    assert deadline.of([4] * 32) == pytest.approx(SLACK * 0.030)
    assert deadline.of([4] * 64) == pytest.approx(SLACK * 0.060)
    assert deadline.of([2]) == pytest.approx(SLACK * 0.030)  # any of them may happen


def test_where_even_smaller_rounds_took_longer_a_larger_one_is_given_as_long() -> None:
    deadline = Scene()
    deadline.note_step(10.0)
    deadline.rounds.add(Round([4], 0.010))
    deadline.rounds.add(Round([2], 0.050))
    assert deadline.of([4]) == pytest.approx(SLACK * 0.050)
