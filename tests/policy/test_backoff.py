"""Pauses grow with failures in a row, and only with those."""

from __future__ import annotations

from starspec.policy.backoff import Backoff


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
