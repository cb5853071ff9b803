"""What a hub may cost in all, whatever it does: a small part of the time, and a little at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.hub_account import CREDIT_S, DOUBTFUL_TOKENS, FIRST_S, REST, TRIAL_S, HubAccount

PLAIN_S = 0.05
MAX_WAIT_S = 0.25  # of a round


@given(waits_s=st.lists(st.floats(0.0, MAX_WAIT_S), min_size=1, max_size=400))
def test_rounds_that_gain_nothing_cost_little_however_long_each_waits(waits_s: list[float]) -> None:
    account, now, lost_s = HubAccount(), 100.0, 0.0
    for num_rounds, wait_s in enumerate([*waits_s, *waits_s, *waits_s], 1):
        if not account.is_resting(now):
            account.add_time(wait_s)
            now, lost_s = now + wait_s, lost_s + wait_s
        now += PLAIN_S
        account.end_round(PLAIN_S, PLAIN_S, 0.0, now, drafted_share=0.0)
        assert lost_s <= FIRST_S + CREDIT_S + MAX_WAIT_S + 0.2 * num_rounds * PLAIN_S


def test_a_hub_that_saves_time_is_never_rested_from() -> None:
    account = HubAccount()
    for number in range(1000):
        account.add_time(PLAIN_S)
        account.end_round(PLAIN_S, None, 2.0, float(number), drafted_share=1.0)
        assert not account.is_resting(float(number))


def test_wrong_drafts_cost_the_time_of_their_verification() -> None:
    account, now = HubAccount(), 0.0
    while not account.is_resting(now):
        now += 2 * PLAIN_S
        account.end_round(2 * PLAIN_S, PLAIN_S, 0.0, now, drafted_share=1.0)
    assert account.is_doubtful
    assert now <= 2 * (FIRST_S + CREDIT_S + TRIAL_S) * 1.2
    assert account.is_resting(now + 0.9 * REST * CREDIT_S)


def test_after_a_rest_a_hub_has_a_short_trial_and_earns_its_credit_back() -> None:
    account, now = HubAccount(), 0.0
    account.add_time(FIRST_S + CREDIT_S + 0.1)
    account.end_round(PLAIN_S, PLAIN_S, 0.0, now, drafted_share=0.0)
    assert account.is_resting(now)
    while account.is_resting(now):
        now += 0.1
    for _ in range(20):
        account.end_round(PLAIN_S, PLAIN_S, 3.0, now, drafted_share=1.0)
    account.add_time(0.9 * CREDIT_S)
    account.end_round(PLAIN_S, PLAIN_S, 0.0, now, drafted_share=0.0)
    assert not account.is_resting(now)


def test_a_hub_whose_drafts_are_mostly_right_is_not_doubted() -> None:
    account = HubAccount()
    assert not account.is_doubtful
    account.end_round(PLAIN_S, None, DOUBTFUL_TOKENS - 1.0, 0.0, drafted_share=1.0)
    assert not account.is_doubtful


def test_a_hub_is_not_credited_with_what_others_draft() -> None:
    """It lets each round wait and drafts nothing; beside it, n-grams double the tokens of each round."""
    account, now = HubAccount(), 0.0
    for _ in range(30):
        account.add_time(0.045)
        now += 0.045 + PLAIN_S
        account.end_round(PLAIN_S, PLAIN_S, 0.0, now, drafted_share=0.0)
    assert account.is_resting(now)


def test_a_hub_pays_for_the_verification_of_its_own_drafts_only() -> None:
    """An eighth of the sequences gain four tokens each by the hub. The others verify n-grams in the same forwards."""
    account, now = HubAccount(), 0.0
    for _ in range(200):
        now += 2.0 * PLAIN_S
        account.end_round(2.0 * PLAIN_S, PLAIN_S, 0.5, now, drafted_share=0.125)
    assert account.num_rests == 0
