"""Whoever sends what it was asked for is never stopped; whoever sends more is, soon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.peer_limits import (
    FEATURES_SHARE,
    MAX_BACKLOG,
    MAX_OWED,
    TOKEN_BYTES,
    UNIT_BYTES,
    WORK_PER_S,
    Allowance,
    backlog_of,
    has_caught_up,
    share_of_work,
    should_pause,
    spared_by_features,
    work_of,
)


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


def test_features_are_less_work_than_other_frames() -> None:
    frame = bytes(64 * UNIT_BYTES)
    assert work_of([frame]) - spared_by_features(len(frame)) == 1.0 + 64 * FEATURES_SHARE


def test_targets_share_the_work_that_all_may_cause() -> None:
    assert 5 * share_of_work(5) == WORK_PER_S


def test_long_messages_count_for_more_while_they_wait() -> None:
    assert (backlog_of(0), backlog_of(1), backlog_of(UNIT_BYTES)) == (1, 1, 2)
    assert 5 * backlog_of(100_000 * TOKEN_BYTES) > MAX_BACKLOG, "so few long prompts are all that waits of one target"


def test_who_is_ahead_of_the_hub_or_of_its_allowance_is_not_read_until_it_is_well_behind() -> None:
    assert should_pause(0, has_sent_too_much=True)
    assert not should_pause(MAX_BACKLOG - 1, has_sent_too_much=False)
    assert should_pause(MAX_BACKLOG, has_sent_too_much=False)
    assert not has_caught_up(MAX_BACKLOG // 2), "else it would stop and go with each message"
    assert has_caught_up(MAX_BACKLOG // 2 - 1)
