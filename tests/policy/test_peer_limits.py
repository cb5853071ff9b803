"""Whoever sends what it was asked for is never stopped; whoever sends more is, soon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.peer_limits import MAX_OWED, UNIT_BYTES, Allowance, work_of


@given(num_asked=st.lists(st.integers(0, 200), max_size=50))
def test_what_was_asked_for_may_come_at_any_rate(num_asked: list[int]) -> None:
    allowance = Allowance(per_s=1.0, burst=0.0)
    for num in num_asked:
        allowance.owe(num)
        assert allowance.take(num, now=5.0)


@given(per_s=st.floats(1.0, 1000.0), burst=st.floats(0.0, 500.0), gaps_s=st.lists(st.floats(0.0, 1.0), min_size=1))
def test_over_any_time_no_more_than_burst_and_rate_come_unasked(
    per_s: float, burst: float, gaps_s: list[float]
) -> None:
    allowance, now, num_taken = Allowance(per_s, burst), 100.0, 0
    for gap_s in gaps_s:
        now += gap_s
        while num_taken < 10_000 and allowance.take(1.0, now):
            num_taken += 1
        assert num_taken <= burst + per_s * (now - 100.0) + 1e-6


def test_who_has_sent_too_much_waits_until_the_rate_has_made_up_for_it() -> None:
    allowance = Allowance(per_s=10.0, burst=5.0)
    assert not allowance.take(15.0, 1.0)
    assert not allowance.has_units(1.9)
    assert allowance.has_units(2.1)


def test_answers_that_never_came_do_not_add_up_for_ever() -> None:
    allowance = Allowance(per_s=0.0, burst=0.0)
    for _ in range(10):
        allowance.owe(MAX_OWED)
    assert allowance.take(MAX_OWED, 1.0)
    assert not allowance.take(1.0, 1.0)


def test_a_long_frame_is_more_work() -> None:
    assert (work_of([]), work_of([b""]), work_of([b"", bytes(2 * UNIT_BYTES)])) == (0.0, 1.0, 4.0)
