"""Laws that take long take no more than a target's share of the time."""

from __future__ import annotations

import pytest

from starspec.policy.law_turns import BURST_S, LawTurns


def test_a_target_that_is_alone_never_waits() -> None:
    turns, now = LawTurns(), 0.0
    for _ in range(100):
        now += 0.5
        turns.spend(0.5, 1.0, now)
        assert not turns.must_wait(now + BURST_S)


def test_targets_with_equally_dear_laws_never_wait() -> None:
    both, now = [LawTurns(), LawTurns()], 0.0
    for _ in range(100):
        now += 0.05  # of which the laws of each take 0.02
        for each in both:
            each.spend(0.02, 0.5, now)
            assert not each.must_wait(now)


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_in_the_long_run_laws_have_their_share_of_the_time(share: float) -> None:
    turns, now, taken_s = LawTurns(), 0.0, 0.0
    while now < 100.0:
        law_s = 0.0 if turns.must_wait(now) else 0.06
        now += 0.01 + law_s
        if law_s:
            turns.spend(law_s, share, now)
            taken_s += law_s
    assert taken_s == pytest.approx(share * now, rel=0.05)
