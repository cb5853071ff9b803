"""When a client that found the queue full is told to come back."""

from __future__ import annotations

import pytest

from starspec.policy.retry_after import LEAST_S, MAX_RECORDED, MOST_S, QueueTime, whole_seconds


def busy(now: float) -> QueueTime:
    """Of targets that have something in every row."""
    queue_time = QueueTime(now)
    queue_time.note_load(9, 8, now)
    return queue_time


def test_the_time_to_retry_is_the_queue_over_the_rate_of_answers() -> None:
    now = 0.0
    queue_time = busy(now)
    assert queue_time.seconds(10, now) == LEAST_S
    for _ in range(20):
        now += 1.0
        queue_time.note_finished(now)
    assert queue_time.seconds(10, now) == pytest.approx(10.0)
    assert queue_time.seconds(30, now) == pytest.approx(30.0)
    assert queue_time.seconds(0, now) == LEAST_S
    now += 3600.0
    assert queue_time.seconds(30, now) == MOST_S


def test_of_very_many_answers_the_last_ones_tell_the_rate() -> None:
    queue_time = busy(0.0)
    for number in range(2 * MAX_RECORDED):
        queue_time.note_finished(10.0 + number * 0.01)
    now = 10.0 + 2 * MAX_RECORDED * 0.01
    assert queue_time.seconds(1000, now) == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize("idle_s", [0.0, 10.0, 3600.0])
def test_time_without_work_does_not_count(idle_s: float) -> None:
    """After an idle hour, four answers of half a second each in front of a client took a minute, as it was told."""
    queue_time, now = QueueTime(0.0), idle_s
    for _ in range(4):
        queue_time.note_load(1, 1, now)
        now += 0.5
        queue_time.note_finished(now)
        queue_time.note_load(0, 1, now)
        now += idle_s
    queue_time.note_load(5, 1, now)
    assert queue_time.seconds(4, now) == pytest.approx(2.0)


def test_answers_that_come_one_by_one_say_how_fast_all_rows_are() -> None:
    """Of eight rows, one was busy: a full queue will be served eight times as fast."""
    queue_time, now = QueueTime(0.0), 0.0
    queue_time.note_load(1, 8, now)
    for _ in range(20):
        now += 4.0
        queue_time.note_finished(now)
    queue_time.note_load(16, 8, now)
    assert queue_time.seconds(8, now) == pytest.approx(4.0)


def test_nobody_is_told_to_come_back_sooner_than_it_helps_or_at_once() -> None:
    assert [whole_seconds(seconds) for seconds in (0.0, 0.2, 1.0, 1.1, 59.5)] == [1, 1, 1, 2, 60]
