"""Trials cost a small share of the time, whatever they are."""

from __future__ import annotations

from starspec.policy.length.trials import CREDIT_ROUNDS, LONGEST_ROUND, SHARE, Trials


def trials_after(seconds: float, *, plain_s: float = 1.0) -> Trials:
    """An account without credit for the first trials, after rounds of so many seconds in all."""
    trials = Trials()
    trials.spend(CREDIT_ROUNDS * plain_s)
    num_rounds = round(seconds / plain_s)
    for number in range(num_rounds + 1):
        trials.pass_time(plain_s, 100.0 + seconds * number / max(1, num_rounds))
    return trials


def test_the_first_trials_have_a_credit_in_plain_rounds() -> None:
    trials = Trials()
    assert trials.allows(CREDIT_ROUNDS * 2.0, plain_s=2.0)
    assert not trials.allows(CREDIT_ROUNDS * 2.0 + 0.01, plain_s=2.0)


def test_later_ones_have_a_share_of_the_time_less_what_was_spent() -> None:
    assert not trials_after(0.0).allows(0.01, plain_s=1.0)
    trials = trials_after(11.0)
    assert trials.allows(10.9 * SHARE, plain_s=1.0)
    assert not trials.allows(11.1 * SHARE, plain_s=1.0)
    trials.spend(10.0 * SHARE)
    assert not trials.allows(1.1 * SHARE, plain_s=1.0)


def test_a_pause_earns_no_more_than_a_long_round() -> None:
    trials = trials_after(0.0)
    trials.pass_time(1.0, 100.0 + 3600.0)
    assert trials.allows(0.99 * LONGEST_ROUND * SHARE, plain_s=1.0)
    assert not trials.allows(1.01 * LONGEST_ROUND * SHARE, plain_s=1.0)


def test_a_trial_that_gains_gives_nothing_back() -> None:
    trials = Trials()
    trials.spend(-5.0)
    trials.spend(CREDIT_ROUNDS)
    assert not trials.allows(0.1, plain_s=1.0)
    assert trials.allows(-0.1, plain_s=1.0)
