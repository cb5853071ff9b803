"""Whoever is late is asked for less, then rarely; one answer in time and all is forgotten."""

from __future__ import annotations

import pytest

from starspec.policy.patience import (
    CATCHING_UP_S,
    FIRST_PAUSE,
    FIRST_READING_S,
    LONGEST_PAUSE_S,
    MAX_MISSES,
    Patience,
    Reading,
)


def pause_of(patience: Patience, now: float) -> int:
    num_steps = 0
    while patience.is_pausing:
        patience.pass_step(now)
        num_steps += 1
    return num_steps


def test_after_each_wait_in_vain_half_as_much_is_asked_for_and_never_nothing() -> None:
    patience = Patience()
    asked = []
    for _ in range(MAX_MISSES + 2):
        asked.append([patience.fitting(num_steps) for num_steps in (0, 1, 2, 7, 8)])
        patience.note_miss(0.0)
    assert asked == [[0, 1, 2, 7, 8], [0, 1, 1, 3, 4], *[[0, 1, 1, 1, 2]] * MAX_MISSES]
    patience.note_in_time()
    assert patience.fitting(8) == 8


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
    assert [patience.forgive(), patience.forgive()] == [True, False]
    patience.note_in_time()
    assert patience.forgive()


@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_a_prompt_may_be_read_for_twice_as_long_each_time_and_a_pause_caught_up_with_in_a_second(
    num_before: int,
) -> None:
    reading = Reading()
    for _ in range(num_before):
        reading.begin(0.0)
    reading.begin(100.0)
    ends_s = 100.0 + FIRST_READING_S * 2**num_before
    assert [reading.is_overdue(ends_s), reading.is_overdue(ends_s + 0.01)] == [False, True]
    reading.begin_catching_up(100.0)
    assert [reading.is_overdue(100.0 + CATCHING_UP_S), reading.is_overdue(100.01 + CATCHING_UP_S)] == [False, True]
    reading.end()
    assert not reading.is_overdue(1e9)
