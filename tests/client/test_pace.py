"""How often a policy is asked, and when its last answer serves again."""

from __future__ import annotations

import pytest

from starspec.client.pace import MAX_REUSED, SHARE, PacedChoices
from starspec.policy.length.snapshot import Choice, Reason, RoundSnapshot
from starspec.speculation.budget import DraftBudget


class SlowPolicy:
    """As LengthPolicy, with a clock that only it moves."""

    def __init__(self, seconds: float, reason: Reason = "cost") -> None:
        self.seconds = seconds
        self.reason: Reason = reason
        self.now = 0.0
        self.num_asked = 0

    def __call__(self) -> float:
        return self.now

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        self.now += self.seconds
        self.num_asked += 1
        return [Choice(DraftBudget.chain(self.num_asked), self.reason) for _ in snapshot.sequences]


def num_asked_in(policy: SlowPolicy, num_rounds: int, round_s: float, about: list[str] | None = None) -> int:
    choices = PacedChoices(policy, policy)
    for number in range(num_rounds):
        key = about[number] if about else "same"
        chosen = choices.choose([key], lambda: RoundSnapshot(sequences=[None], num_sequences=1))  # type: ignore[list-item]
        assert chosen[0].budget.num_draft_tokens == policy.num_asked
        policy.now += round_s
    return policy.num_asked


def test_a_quick_policy_is_asked_every_round() -> None:
    assert num_asked_in(SlowPolicy(0.0001), 20, round_s=0.0001 / SHARE) == 20


def test_a_slow_policy_takes_a_small_share_of_the_time() -> None:
    assert num_asked_in(SlowPolicy(0.0001), 20, round_s=0.0001 / SHARE / 3.5) == 5


def test_an_answer_serves_a_few_rounds_at_most() -> None:
    assert num_asked_in(SlowPolicy(1.0), 2 * (MAX_REUSED + 1), round_s=0.001) == 2


def test_other_sequences_need_another_answer() -> None:
    assert num_asked_in(SlowPolicy(1.0), 6, 0.001, about=["a", "a", "b", "b", "a", "a"]) == 3


def test_a_trial_is_for_one_round() -> None:
    assert num_asked_in(SlowPolicy(1.0, "probe"), 6, round_s=0.001) == 6


@pytest.mark.parametrize("is_urgent", [False, True])
def test_what_is_urgent_is_asked_in_any_case(is_urgent: bool) -> None:
    policy = SlowPolicy(1.0)
    choices = PacedChoices(policy, policy)
    for _ in range(3):
        choices.choose(["a"], lambda: RoundSnapshot(sequences=[], num_sequences=0), is_urgent=is_urgent)
    assert policy.num_asked == (3 if is_urgent else 1)
