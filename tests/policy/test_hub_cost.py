"""When a target measures rounds without drafts, and what it concludes about its hub."""

from __future__ import annotations

import pytest

from starspec.policy.hub_account import HubAccount
from starspec.policy.hub_cost import HubCost, RoundGain
from starspec.policy.plain_speed import MIN_ROUNDS

PLAIN = RoundGain(1, has_drafts=False)
WRONG = RoundGain(1, has_drafts=True, drafted_share=1.0)


def in_doubt() -> HubAccount:
    account = HubAccount()
    account.end_round(0.02, None, 0.0, 0.0, drafted_share=1.0)
    assert account.is_doubtful
    return account


@pytest.mark.parametrize(
    ("account", "is_speed_wanted", "is_hub_lost", "is_due"),
    [
        (None, True, False, True),
        (in_doubt(), False, False, True),
        (None, False, False, False),
        (HubAccount(), False, False, False),
        (in_doubt(), True, True, False),
    ],
)
def test_a_round_is_plain_while_somebody_has_to_know_the_speed_and_a_hub_is_there(
    account: HubAccount | None, is_speed_wanted: bool, is_hub_lost: bool, is_due: bool
) -> None:
    cost, why = HubCost(account), {"is_speed_wanted": is_speed_wanted, "is_hub_lost": is_hub_lost}
    assert cost.is_plain_round_due(1, 0.0, **why) == is_due
    for _ in range(MIN_ROUNDS):
        cost.end_round(0.02, PLAIN, 0.0)
    assert not cost.is_plain_round_due(1, 0.0, **why)


def test_only_rounds_without_any_draft_are_plain_ones() -> None:
    cost = HubCost(None)
    for _ in range(MIN_ROUNDS):
        assert not cost.end_round(0.02, PLAIN, 0.0)
        assert not cost.end_round(0.08, RoundGain(1, has_drafts=True), 0.0)
    assert cost.plain_tokens_per_s(1) == pytest.approx(50.0)


def test_a_rest_is_told_when_it_begins() -> None:
    account = HubAccount()
    cost, now, told = HubCost(account), 0.0, 0
    for _ in range(MIN_ROUNDS):
        cost.end_round(0.02, PLAIN, now)
    while not account.is_resting(now):
        now += 0.1
        assert not told
        told += cost.end_round(0.1, WRONG, now)
    assert told == account.num_rests == 1
    assert not cost.end_round(0.1, WRONG, now)
