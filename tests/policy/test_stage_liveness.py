"""Whether a stage lives: what counts is silence after an answer was due, and that beats are answered at all."""

from __future__ import annotations

import pytest

from starspec.policy.stage_liveness import LONGEST_ROUND_TRIP_S, MAX_UNANSWERED, StageLiveness

WITHIN_S = 2.0


def answered(round_trip_s: float) -> tuple[StageLiveness, float]:
    """A stage that has answered beats for some time, and the time of the last answer."""
    liveness, now, on_way = StageLiveness(WITHIN_S, 0.0), 0.0, list[tuple[float, float]]()
    while now < 20.0 + round_trip_s:
        now += 0.01
        while on_way and on_way[0][0] <= now:
            liveness.note_answer(on_way.pop(0)[1], now)
        assert not liveness.is_dead(now)
        if liveness.is_beat_due(now):
            liveness.note_beat(now)
            on_way.append((now + round_trip_s, now))
    return liveness, now


def died(liveness: StageLiveness, now: float) -> float:
    """When a stage is seen dead from which nothing comes any more."""
    while not liveness.is_dead(now):
        now += 0.01
        if liveness.is_beat_due(now):
            liveness.note_beat(now)
    return now


@pytest.mark.parametrize("round_trip_s", [0.0, 0.2, 4.0])
def test_a_slow_stage_is_never_dead_and_a_dead_one_is_seen_in_time_beside_its_round_trip(round_trip_s: float) -> None:
    liveness, now = answered(round_trip_s)
    assert liveness.round_trip_s == pytest.approx(round_trip_s, abs=0.02)
    assert 1.4 < died(liveness, now) - now < WITHIN_S + round_trip_s


def test_before_the_first_answer_a_link_may_be_slow() -> None:
    assert died(StageLiveness(WITHIN_S, 0.0), 0.0) > 6.0


def test_who_was_away_itself_waits_anew() -> None:
    liveness, now = answered(0.1)
    liveness.note_beat(now)
    liveness.pardon(now + 30.0)
    assert not liveness.is_dead(now + 31.0)
    assert died(liveness, now + 31.0) < now + 33.0  # 6 beats and a round trip after the first beat since then


def test_beats_from_before_it_was_away_itself_are_not_missing() -> None:
    liveness, now = answered(4.0)
    liveness.pardon(now)
    assert died(liveness, now) > now + 5.0


def test_a_stage_that_sends_something_and_answers_no_beat_is_dead_after_the_longest_round_trip() -> None:
    liveness, now = answered(0.1)
    mute_s = now
    while not liveness.is_dead(now):
        now += 0.01
        liveness.note_message(now)
        if liveness.is_beat_due(now):
            liveness.note_beat(now)
        assert now < mute_s + 2 * LONGEST_ROUND_TRIP_S
    assert now > mute_s + LONGEST_ROUND_TRIP_S


def test_an_answer_to_what_was_never_sent_measures_nothing() -> None:
    liveness, now = answered(0.1)
    liveness.note_answer(1e9, now)
    liveness.note_answer(-1e9, now)
    assert 0.0 <= liveness.round_trip_s < 1.0


def test_a_stage_that_holds_its_answers_back_is_not_waited_for_so_long() -> None:
    liveness, now = answered(0.1)
    for _ in range(3600):
        now += 1.0
        liveness.note_beat(now)
        liveness.note_message(now)  # it says other things meanwhile
    assert len(liveness._unanswered) == MAX_UNANSWERED
    liveness.note_answer(now - 200.0, now)
    assert liveness.round_trip_s == LONGEST_ROUND_TRIP_S
