"""Who hangs and who is only busy, when the dead are started again, and when nobody counts on them any more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.vitals import (
    ABSENT_S,
    BEAT_S,
    FIRST_DELAY_S,
    GOOD_RUN_S,
    HANGS_S,
    MAX_DEATHS,
    MAX_DELAY_S,
    SILENT_S,
    STARTING_HANGS_S,
    Vitals,
    fails_for_good,
    was_suspended,
)


def ready(now: float = 0.0) -> Vitals:
    vitals = Vitals()
    vitals.start(now)
    vitals.become_ready(now)
    return vitals


def die_in_a_row(vitals: Vitals, num_deaths: int, life_s: float = 0.0) -> list[float]:
    """Returns: the delays. Each run is ready at once and lives for `life_s`."""
    now, delays_s = 0.0, []
    for _ in range(num_deaths):
        vitals.start(now)
        vitals.become_ready(now)
        now += life_s
        delays_s.append(vitals.die(now))
        now += delays_s[-1]
    return delays_s


def test_delays_double_up_to_a_bound_and_never_end() -> None:
    delays_s = die_in_a_row(Vitals(), 2000)
    assert delays_s[:10] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, MAX_DELAY_S, MAX_DELAY_S]
    assert set(delays_s[10:]) == {MAX_DELAY_S}


def test_a_child_that_dies_too_often_in_a_row_is_given_up_until_it_has_served_for_a_while() -> None:
    vitals = Vitals()
    die_in_a_row(vitals, MAX_DEATHS)
    assert not vitals.is_given_up
    die_in_a_row(vitals, 1)
    assert vitals.is_given_up
    assert die_in_a_row(vitals, 1, life_s=GOOD_RUN_S) == [FIRST_DELAY_S]
    assert not vitals.is_given_up


@given(st.floats(GOOD_RUN_S, 1e6))
def test_good_runs_never_lead_to_giving_up(life_s: float) -> None:
    vitals = Vitals()
    assert set(die_in_a_row(vitals, 3 * MAX_DEATHS, life_s)) == {FIRST_DELAY_S}
    assert not vitals.is_given_up


def test_a_child_that_stops_beating_is_silent_and_then_hangs() -> None:
    vitals = ready()
    assert not vitals.is_silent(SILENT_S - 0.01)
    assert vitals.is_silent(SILENT_S)
    assert not vitals.hangs(HANGS_S - 0.01)
    assert vitals.hangs(HANGS_S)
    vitals.hear(HANGS_S)
    assert not vitals.is_silent(HANGS_S)


def test_a_child_that_beats_is_neither_however_long_it_computes() -> None:
    vitals, now = ready(), 0.0
    for _ in range(10_000):
        now += 2 * BEAT_S  # every other beat is lost
        assert not vitals.is_silent(now)
        assert not vitals.hangs(now)
        vitals.hear(now)


@pytest.mark.parametrize("silence_s", [HANGS_S, STARTING_HANGS_S - 0.01])
def test_a_child_that_starts_may_be_silent_for_long(silence_s: float) -> None:
    vitals = Vitals()
    vitals.start(0.0)
    assert not vitals.is_silent(silence_s)
    assert not vitals.hangs(silence_s)
    assert vitals.hangs(STARTING_HANGS_S)
    vitals.become_ready(silence_s)  # silence counts from here
    assert not vitals.is_silent(silence_s)


def test_a_child_that_does_not_run_cannot_hang() -> None:
    vitals = ready()
    vitals.die(1.0)
    assert not vitals.hangs(1e9)
    assert not vitals.is_silent(1e9)


def test_a_supervisor_that_looks_much_later_than_it_meant_to_was_suspended() -> None:
    assert not was_suspended(gap_s=5.0 + ABSENT_S, wait_s=5.0)
    assert was_suspended(gap_s=5.1 + ABSENT_S, wait_s=5.0)


def test_only_a_child_that_fails_by_itself_before_it_ever_served_is_not_started_again() -> None:
    assert fails_for_good(1, was_ready=False)
    assert fails_for_good(0, was_ready=False)
    assert not fails_for_good(-9, was_ready=False)
    assert not fails_for_good(1, was_ready=True)
