"""Trials cost a small share of the time, whatever they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.length.trials import (
    CREDIT_ROUNDS,
    FULL_PROMISE,
    LONGEST_ROUND,
    PROMISED_ROUNDS,
    SAVED_ROUNDS,
    SHARE,
    Trial,
    Trials,
)


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


@pytest.mark.parametrize("by_gains", [False, True], ids=["of a long time", "of gains"])
def test_no_more_is_kept_for_later_trials_than_some_rounds(by_gains: bool) -> None:
    trials = trials_after(0.0) if by_gains else trials_after(3.0 * SAVED_ROUNDS / SHARE)
    if by_gains:
        trials.make(Trial(round_s=1.0, tokens_s=1.0, started_s=100.0, num_emitted=0), 1.0)
        trials.close(1.0 + 3.0 * SAVED_ROUNDS, 101.0)
        trials.pass_time(1.0, 102.0)
    assert trials.allows(CREDIT_ROUNDS + SAVED_ROUNDS, plain_s=1.0)
    trials.spend(CREDIT_ROUNDS + SAVED_ROUNDS)
    assert not trials.allows(0.01, plain_s=1.0)


def test_a_trial_that_costs_more_than_can_be_kept_is_made_when_all_is_kept_and_paid_for_in_full() -> None:
    cost_s = 3.0 * SAVED_ROUNDS
    assert not trials_after(0.9 * SAVED_ROUNDS / SHARE).allows(cost_s, plain_s=1.0)
    trials = trials_after(1.1 * SAVED_ROUNDS / SHARE)
    assert trials.allows(cost_s, plain_s=1.0)
    trials.spend(cost_s)
    for number in range(round(0.9 * cost_s / SHARE)):
        trials.pass_time(1.0, 1e6 + number)
    assert not trials.allows(cost_s, plain_s=1.0)
    for number in range(round(0.2 * cost_s / SHARE)):
        trials.pass_time(1.0, 2e6 + number)
    assert trials.allows(cost_s, plain_s=1.0)


def test_what_is_kept_stays_while_it_is_not_known_what_a_plain_round_takes() -> None:
    trials = trials_after(1000.0)
    trials.pass_time(0.0, 1200.0)
    assert trials.allows(0.9 * 1000.0 * SHARE, plain_s=1.0)


def test_what_is_expected_to_gain_is_allowed_and_earns_nothing_by_that() -> None:
    trials = Trials()
    trials.spend(-5.0)
    trials.spend(CREDIT_ROUNDS)
    assert not trials.allows(0.1, plain_s=1.0)
    assert trials.allows(-0.1, plain_s=1.0)


def made(*, round_s: float = 2.0, tokens_s: float = 1.5, beside_s: float = 0.0) -> Trials:
    """An account whose first trial begins at 100 s. A plain round takes a second."""
    trials = Trials()
    trial = Trial(round_s=round_s, tokens_s=tokens_s, beside_s=beside_s, started_s=100.0, num_emitted=0)
    assert trials.make(trial, 1.0)
    return trials


def cost_s(trials: Trials) -> float:
    """What trials have cost, to 1/64, where no time has passed."""
    return CREDIT_ROUNDS - max(each / 64 for each in range(-500, 500) if trials.allows(each / 64, plain_s=1.0))


@pytest.mark.parametrize(
    ("took_s", "gave_s", "lost_s"),
    [(2.0, 1.0, 1.0), (2.0, 1.5, 0.5), (1.25, 1.0, 0.25), (1.0, 1.0, 0.0), (2.0, 3.0, -1.0), (900.0, 700.0, 0.5)],
    ids=["less than hoped", "as expected", "quicker", "no draft came", "a gain", "interrupted"],
)
def test_a_trial_costs_what_its_round_took_and_gave(took_s: float, gave_s: float, lost_s: float) -> None:
    trials = made()
    assert cost_s(trials) == 0.5, "what is expected, until the round is over"
    trials.close(gave_s, 100.0 + took_s)
    assert cost_s(trials) == lost_s
    assert trials.open is None


def test_a_trial_of_which_only_gains_were_expected_pays_for_its_loss() -> None:
    trials = made(tokens_s=2.5)
    assert cost_s(trials) == 0.0
    trials.close(1.0, 102.0)
    assert cost_s(trials) == 1.0


def test_an_interrupted_trial_earns_no_gain_that_was_only_expected() -> None:
    trials = made(tokens_s=2.5)
    trials.close(700.0, 1000.0)
    assert cost_s(trials) == 0.0


def test_what_a_trial_costs_beside_its_round_stays() -> None:
    trials = made(beside_s=1.0)
    assert cost_s(trials) == 1.5
    trials.close(1.0, 101.75)
    assert cost_s(trials) == 1.75


@pytest.mark.parametrize(("gave_s", "lost_s"), [(1.0, 0.5), (1.75, 0.25), (3.0, -1.0)])
def test_a_trial_costs_no_more_than_was_expected_where_its_tokens_may_be_worth_more(
    gave_s: float, lost_s: float
) -> None:
    trials = made()
    trials.close(gave_s, 102.0, is_lower_bound=True)
    assert cost_s(trials) == lost_s


def test_a_trial_of_which_nothing_becomes_known_costs_what_was_expected() -> None:
    trials = made()
    trials.drop()
    assert cost_s(trials) == 0.5
    assert trials.open is None


def test_the_second_round_of_a_trial_is_made_in_any_case_and_charged() -> None:
    trials = made(beside_s=1.5)
    trial = Trial(round_s=1.5, tokens_s=1.0, started_s=102.0, num_emitted=1)
    assert not trials.make(trial, 1.0)
    assert trials.make(trial, 1.0, is_going_on=True)
    assert cost_s(trials) == 2.5


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0, 4.0])
def test_a_trial_may_cost_more_in_proportion_to_what_it_promises_up_to_the_full_promise(share: float) -> None:
    trials, most_s = Trials(), 2.0 * (CREDIT_ROUNDS + PROMISED_ROUNDS * min(1.0, share))
    promise = share * FULL_PROMISE
    assert trials.allows(most_s - 0.01, plain_s=2.0, promise=promise)
    assert not trials.allows(most_s + 0.01, plain_s=2.0, promise=promise)
    trials.spend(most_s)
    assert not trials.allows(0.01, plain_s=2.0, promise=promise)
    assert not trials.allows(0.01, plain_s=2.0), "others wait until the time has paid for it"


@pytest.mark.parametrize(("num_sequences", "share"), [(1, 1.0), (4, 0.5), (16, 0.25)])
def test_a_trial_of_more_sequences_may_cost_less_for_what_it_promises(num_sequences: int, share: float) -> None:
    def is_made(cost_s: float) -> bool:
        trial = Trial(round_s=cost_s, tokens_s=0.0, num_sequences=num_sequences)
        return Trials().make(trial, 1.0, promise=9.9)

    assert is_made(CREDIT_ROUNDS + share * PROMISED_ROUNDS - 0.01)
    assert not is_made(CREDIT_ROUNDS + share * PROMISED_ROUNDS + 0.01)


times = st.floats(0.0, 1e3)


@given(st.lists(st.tuples(times, times, times, times, times, st.booleans()), max_size=20))
def test_a_trial_that_takes_and_gives_what_was_expected_costs_that_and_no_account_explodes(
    trials_made: list[tuple[float, float, float, float, float, bool]],
) -> None:
    trials, spent_s = Trials(), 0.0
    for round_s, tokens_s, beside_s, more_s, more_tokens_s, is_lower_bound in trials_made:
        trial = Trial(round_s=round_s, tokens_s=tokens_s, beside_s=beside_s, num_emitted=0)
        assert trials.make(trial, 1.0, is_going_on=True)
        trials.close(tokens_s + more_tokens_s, round_s + more_s, is_lower_bound=is_lower_bound)
        lost_s = trial.cost_s + more_s - more_tokens_s
        if more_s > round_s * (1.0 + 1e-9):
            lost_s = max(0.0, trial.cost_s)  # interrupted
        spent_s += min(lost_s, max(0.0, trial.cost_s)) if is_lower_bound else lost_s
    plain_s = 1e4  # so long that no gains are more than what is kept
    assert trials.allows(CREDIT_ROUNDS * plain_s - spent_s - 1e-3, plain_s)
    assert not trials.allows(CREDIT_ROUNDS * plain_s - spent_s + 1e-3, plain_s)
