"""Whoever is late is asked for less, then rarely; one answer in time and all is forgotten."""

from __future__ import annotations

import pytest

from starspec.policy.patience import (
    CATCH_UP_WAIT_S,
    FIRST_PAUSE,
    FIRST_PREFILL_WAIT_S,
    LONGEST_PAUSE_S,
    MAX_MISSES,
    Patience,
    PrefillWait,
)


def pause_of(patience: Patience, now: float) -> int:
    num_steps = 0
    while patience.is_pausing:
        patience.note_paused_step(now)
        num_steps += 1
    return num_steps


def test_after_each_wait_in_vain_half_as_much_is_asked_for_and_never_nothing() -> None:
    patience = Patience()
    asked = []
    for _ in range(MAX_MISSES + 2):
        asked.append([patience.max_steps(num_steps) for num_steps in (0, 1, 2, 7, 8)])
        patience.note_miss(0.0)
    assert asked == [[0, 1, 2, 7, 8], [0, 1, 1, 3, 4], *[[0, 1, 1, 1, 2]] * MAX_MISSES]
    patience.note_in_time()
    assert patience.max_steps(8) == 8


def test_a_proposal_in_time_ends_the_pause_and_the_next_one_is_as_short_as_the_first() -> None:
    patience = Patience()
    pauses = []
    for _ in range(MAX_MISSES + 1):
        patience.note_miss(0.0)
        pauses.append(pause_of(patience, 0.0))
    assert pauses == [0] * (MAX_MISSES - 1) + [FIRST_PAUSE, 2 * FIRST_PAUSE]
    patience.note_miss(0.0)
    assert patience.is_pausing
    patience.note_in_time()
    assert not patience.is_pausing
    for _ in range(MAX_MISSES):
        patience.note_miss(0.0)
    assert pause_of(patience, 0.0) == FIRST_PAUSE


def test_a_long_pause_ends_after_some_seconds_however_few_its_steps() -> None:
    patience = Patience()
    for _ in range(MAX_MISSES + 2):
        patience.note_miss(10.0)
    assert pause_of(patience, 10.0 + LONGEST_PAUSE_S) == FIRST_PAUSE


def test_one_wait_in_vain_is_forgiven_between_two_proposals_in_time() -> None:
    patience = Patience()
    assert [patience.excuse(), patience.excuse()] == [True, False]
    patience.note_in_time()
    assert patience.excuse()


@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_a_prompt_may_be_prefilled_for_twice_as_long_each_time_and_a_pause_caught_up_with_in_a_second(
    num_before: int,
) -> None:
    wait = PrefillWait()
    for _ in range(num_before):
        wait.begin(0.0)
    wait.begin(100.0)
    ends_s = 100.0 + FIRST_PREFILL_WAIT_S * 2**num_before
    assert [wait.is_overdue(ends_s), wait.is_overdue(ends_s + 0.01)] == [False, True]
    wait.begin_catch_up(100.0)
    assert [wait.is_overdue(100.0 + CATCH_UP_WAIT_S), wait.is_overdue(100.01 + CATCH_UP_WAIT_S)] == [False, True]
    wait.end()
    assert not wait.is_overdue(1e9)
