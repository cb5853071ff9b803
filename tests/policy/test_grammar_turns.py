"""Grammars that take long take no more than a share of a target's time while others run."""

from __future__ import annotations

import pytest

from starspec.policy.grammar_turns import BURST_S, FREE_S, SHARE, GrammarTurns


def test_usual_grammars_owe_nothing_however_many_there_are() -> None:
    turns = GrammarTurns()
    assert not any(turns.spend(3 * FREE_S, 3, now=0.0) for _ in range(1000))
    assert not turns.must_wait(0.0)


def test_a_long_step_now_and_then_costs_no_turn() -> None:
    turns = GrammarTurns()
    assert turns.spend(FREE_S + SHARE * BURST_S, 1, now=5.0)
    assert not turns.must_wait(5.0)
    assert turns.spend(FREE_S + 0.001, 1, now=5.0)
    assert turns.must_wait(5.0)


@pytest.mark.parametrize("cost_s", [0.002, 0.03])
def test_what_is_taken_beyond_is_the_share_in_the_long_run(cost_s: float) -> None:
    turns, now, taken_s = GrammarTurns(), 0.0, 0.0
    while now < 60.0:
        if not turns.must_wait(now):
            turns.spend(FREE_S + cost_s, 1, now)
            taken_s += cost_s
        now += 0.001
    assert taken_s == pytest.approx(SHARE * now, rel=0.05)
