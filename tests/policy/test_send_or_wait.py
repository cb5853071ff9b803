"""Waiting for one more token is compared with what a round is worth."""

from __future__ import annotations

import pytest

from starspec.policy.send_or_wait import MOST_STEP_WAITED_FOR, SendOrWait


def settled(likely: float) -> SendOrWait:
    """What is known after many rounds in which a token was accepted with this probability."""
    rule = SendOrWait()
    for number in range(2000):
        rule.add_verdict(1, int(number * likely) != int((number + 1) * likely))
    return rule


def longest(rule: SendOrWait, step_s: float, away_s: float) -> int:
    num_tokens = 1
    while rule.pays_to_wait(num_tokens, step_s, away_s):
        num_tokens += 1
    return num_tokens


@pytest.mark.parametrize("likely", [0.5, 0.8, 0.95])
@pytest.mark.parametrize(("step_s", "return_s"), [(0.0014, 0.0305), (0.01, 0.025), (0.001, 0.01)])
def test_a_chain_that_is_ready_is_as_long_as_its_rate_is_best(likely: float, step_s: float, return_s: float) -> None:
    """The first token is there: the best length n has the highest (1 + a + ... + a**n) / (Z + (n - 1) t_s)."""

    def rate(num_tokens: int) -> float:
        return sum(likely**depth for depth in range(num_tokens + 1)) / (return_s + (num_tokens - 1) * step_s)

    best = max(range(1, 200), key=rate)
    rule = settled(likely)
    found, waited_s = 1, 0.0
    while rule.pays_to_wait(found, step_s, return_s + waited_s):
        found, waited_s = found + 1, waited_s + step_s
    assert rate(found) > 0.98 * rate(best)  # the measured acceptance is near, not equal


def test_a_target_that_is_long_away_wants_long_chains() -> None:
    assert longest(settled(0.8), 0.002, 0.1) > longest(settled(0.8), 0.002, 0.01)


def test_a_chain_that_runs_ahead_is_sent_unless_its_next_token_is_nearly_there() -> None:
    rule = settled(0.8)
    assert rule.pays_to_send(1, step_s=1.0, running_s=0.0, away_s=None, mode="chain")
    assert rule.pays_to_send(1, step_s=1.0, running_s=MOST_STEP_WAITED_FOR, away_s=None, mode="chain")
    assert not rule.pays_to_send(1, step_s=1.0, running_s=1.01 * MOST_STEP_WAITED_FOR, away_s=None, mode="chain")


def test_a_chain_beside_outcomes_is_sent_when_the_rest_of_a_draft_step_is_not_worth_the_wait() -> None:
    rule = settled(0.8)
    step_s, away_s = 1.0, 2.0
    assert not rule.pays_to_wait(1, step_s, away_s)
    assert rule.pays_to_send(1, step_s, 0.0, away_s, "outcomes")
    assert not rule.pays_to_send(1, step_s, 0.9, away_s, "outcomes"), "the next token is nearly there"
    assert not rule.pays_to_send(1, step_s, 0.0, None, "outcomes"), "it is not known how long the target takes"


def test_nothing_is_sent_before_the_first_token() -> None:
    rule = settled(0.8)
    assert not rule.pays_to_send(0, 1.0, 0.0, 2.0, "chain")
    assert not rule.pays_to_send(0, 1.0, 0.0, 2.0, "outcomes")
