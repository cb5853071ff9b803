"""When a target counts as silent or stuck, and when the gateway itself was away."""

from __future__ import annotations

from typing import Any

import pytest

from starspec.gateway.routed_target import ASK_INTERVAL_S as STEP_S
from starspec.policy.target_health import (
    PAUSE_S,
    SILENCE_S,
    UNREACHED_S,
    TargetHealth,
    TargetVitals,
    Trouble,
    leaves_silent_target,
)

WELL: dict[str, Any] = {
    "is_connected": True,
    "is_answering": True,
    "is_refusing": False,
    "is_known": True,
    "is_stopping": False,
}


def look_until(vitals: TargetVitals, start_s: float, end_s: float, *, is_known: bool = True) -> list[Trouble]:
    """What is found from `start_s` to `end_s`, one look each half second."""
    times_s = [start_s + STEP_S * number for number in range(round((end_s - start_s) / STEP_S) + 1)]
    found = [
        vitals.look(now, unreachable_s=0.0 if is_known else now - start_s + STEP_S, is_known=is_known)
        for now in times_s
    ]
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    ("fields", "health"),
    [
        ({}, TargetHealth.READY),
        ({"is_stopping": True}, TargetHealth.STOPPING),
        ({"is_known": False}, TargetHealth.STARTING),
        ({"is_known": False, "is_refusing": True}, TargetHealth.REFUSING),
        ({"is_answering": False, "is_known": False}, TargetHealth.SILENT),
        ({"is_connected": False, "is_answering": False}, TargetHealth.UNREACHABLE),
    ],
)
def test_the_first_thing_that_is_missing_names_the_state(fields: dict[str, bool], health: TargetHealth) -> None:
    assert TargetVitals(0.0).health(**(WELL | fields)) is health


def test_a_target_that_says_nothing_for_too_long_is_stuck_until_it_tells_its_status_or_comes_anew() -> None:
    for cure in (TargetVitals.note_status, TargetVitals.note_break):
        vitals = TargetVitals(0.0)
        vitals.hear(10.0)
        assert not look_until(vitals, STEP_S, 10.0 + SILENCE_S)
        assert vitals.look(10.1 + SILENCE_S, unreachable_s=0.0, is_known=True) is Trouble.STUCK
        vitals.hear(11.0 + SILENCE_S)
        assert vitals.health(**WELL) is TargetHealth.SILENT, "an output is not a status"
        cure(vitals)
        assert vitals.health(**WELL) is TargetHealth.READY


def test_a_gateway_that_was_away_hears_nothing_and_its_leases_may_be_over() -> None:
    vitals = TargetVitals(0.0)
    assert vitals.look(PAUSE_S, unreachable_s=0.0, is_known=True) is None
    assert vitals.look(2 * PAUSE_S + 0.1, unreachable_s=0.0, is_known=True) is Trouble.SUSPENDED
    assert vitals.look(2 * PAUSE_S + 0.2, unreachable_s=0.0, is_known=True) is None


def test_a_target_out_of_reach_is_a_trouble_late_and_once_until_it_was_there() -> None:
    assert not look_until(TargetVitals(0.0), 0.0, UNREACHED_S - STEP_S, is_known=False)
    vitals = TargetVitals(0.0)
    assert look_until(vitals, 0.0, 3 * UNREACHED_S, is_known=False) == [Trouble.UNREACHED]
    vitals.note_status()
    assert look_until(vitals, 3 * UNREACHED_S, 5 * UNREACHED_S, is_known=False) == [Trouble.UNREACHED]


def test_only_requests_without_output_that_another_target_takes_leave_a_silent_one() -> None:
    assert leaves_silent_target(10, has_begun=False, can_move=lambda num_positions: num_positions == 10)
    assert not leaves_silent_target(10, has_begun=False, can_move=lambda _: False)
    assert not leaves_silent_target(10, has_begun=True, can_move=lambda _: True)
