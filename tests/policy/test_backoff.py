"""Pauses grow with failures in a row, and only with those."""

from __future__ import annotations

from starspec.policy.backoff import FAILURE_PAUSE_S, RETRY_S, Backoff, DraftPause


def test_pauses_double_until_it_has_worked_for_a_while() -> None:
    backoff = Backoff(first_s=1.0, longest_s=5.0, stable_s=10.0, num_free=1)
    assert [backoff.pause_s(0.0) for _ in range(5)] == [0.0, 1.0, 2.0, 4.0, 5.0]
    assert backoff.num_failures == 5
    backoff.note_success(20.0)
    assert backoff.pause_s(29.0) == 5.0, "not for long enough"
    backoff.note_success(30.0)
    backoff.note_success(39.0)
    assert [backoff.pause_s(40.0), backoff.pause_s(41.0)] == [0.0, 1.0]
    assert backoff.num_failures == 2


def test_after_a_failed_draft_step_a_hub_opens_no_tags_for_a_while() -> None:
    pause = DraftPause()
    assert not pause.is_pausing(0.0)
    assert pause.retry_after_s(0.0) == RETRY_S
    pause.note_failed_step(5.0)
    assert [pause.is_pausing(now) for now in (5.0, 4.9 + FAILURE_PAUSE_S, 5.0 + FAILURE_PAUSE_S)] == [True, True, False]


def test_a_declined_target_asks_again_after_the_pause_and_never_at_once() -> None:
    pause = DraftPause()
    pause.note_failed_step(5.0)
    for now in (4.0, 5.0, 5.5, 9.0):
        again_s = now + pause.retry_after_s(now)
        assert not pause.is_pausing(again_s)
        assert again_s >= now + RETRY_S
