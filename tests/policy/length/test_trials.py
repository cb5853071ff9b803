"""Trials cost a small share of the time, whatever they are."""

from __future__ import annotations

from starspec.policy.length.trials import CREDIT_ROUNDS, SHARE, Trials


def test_the_first_trials_have_a_credit_in_plain_rounds() -> None:
    trials = Trials()
    assert trials.allows(CREDIT_ROUNDS * 2.0, plain_s=2.0, now=100.0)
    assert not trials.allows(CREDIT_ROUNDS * 2.0 + 0.01, plain_s=2.0, now=100.0)


def test_later_ones_have_a_share_of_the_time_less_what_was_spent() -> None:
    trials = Trials()
    assert trials.allows(1.0, plain_s=1.0, now=100.0)
    trials.spend(CREDIT_ROUNDS)
    assert not trials.allows(0.01, plain_s=1.0, now=100.0)
    assert trials.allows(0.01, plain_s=1.0, now=100.0 + 0.011 / SHARE)
    trials.spend(0.01)
    assert not trials.allows(0.01, plain_s=1.0, now=100.0 + 0.011 / SHARE)


def test_a_trial_that_gains_gives_nothing_back() -> None:
    trials = Trials()
    assert trials.allows(1.0, plain_s=1.0, now=0.0)
    trials.spend(-5.0)
    trials.spend(CREDIT_ROUNDS)
    assert not trials.allows(0.1, plain_s=1.0, now=0.0)
    assert trials.allows(-0.1, plain_s=1.0, now=0.0)
