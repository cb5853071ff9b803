"""Requests with policies of their own, beside others in the same round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from starspec.config import LengthConfig, Policy, SpeculativeConfig
from starspec.policy.length.by_request import ByRequest
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.make import make_policy
from starspec.policy.length.snapshot import Choice, RoundSnapshot, SequenceSnapshot
from starspec.speculation.budget import DraftBudget

ANY = SequenceSnapshot(max_remaining_tokens=99)


class Watched:
    """A policy of one length that keeps what it was shown."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.shown: list[RoundSnapshot] = []

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        self.shown.append(snapshot)
        return [Choice.of(DraftBudget.chain(self.length))] * len(snapshot.sequences)


def test_each_sequence_gets_what_its_policy_chooses_and_each_policy_sees_its_own() -> None:
    usual, other = Watched(1), Watched(2)
    policy = ByRequest(usual, {"dsde": other})
    asked: list[Policy | None] = ["dsde", None, None, "dsde"]
    snapshot = RoundSnapshot(sequences=[replace(ANY, policy_asked=each) for each in asked], num_sequences=5)
    assert [each.budget.num_steps for each in policy.choose(snapshot)] == [2, 1, 1, 2]
    assert [(len(each.shown), len(each.shown[0].sequences)) for each in (usual, other)] == [(1, 2), (1, 2)]
    assert usual.shown[0].num_sequences == other.shown[0].num_sequences == 5


def test_without_wishes_the_targets_policy_sees_the_whole_round() -> None:
    usual = Watched(3)
    snapshot = RoundSnapshot(sequences=[ANY] * 2, num_sequences=2)
    assert [each.budget.num_steps for each in ByRequest(usual, {}).choose(snapshot)] == [3, 3]
    assert usual.shown == [snapshot]


def test_a_policy_that_does_not_fit_the_drafter_gives_way_to_its_own() -> None:
    usual, other = Watched(1), Watched(2)
    asked: list[Policy | None] = ["dsde", "fixed", None, "adaedl"]
    snapshot = RoundSnapshot(sequences=[replace(ANY, policy_asked=each) for each in asked], num_sequences=4)
    assert [each.budget.num_steps for each in ByRequest(usual, {"fixed": other}).choose(snapshot)] == [1, 2, 1, 1]
    assert [len(each.sequences) for each in usual.shown] == [3]


def test_a_requests_policy_has_the_configs_depth_or_its_own_usual_one() -> None:
    def length(config: SpeculativeConfig, asked: Policy) -> int:
        sequence = replace(ANY, policy_asked=asked)
        return make_policy(config).choose(RoundSnapshot(sequences=[sequence], num_sequences=1))[0].budget.num_steps

    assert length(SpeculativeConfig(), "fixed") == 4
    assert length(SpeculativeConfig(num_speculative_tokens=7), "fixed") == 7
    assert length(SpeculativeConfig(length=LengthConfig(policy="fixed")), "confidence") == 8
    assert length(SpeculativeConfig(num_speculative_tokens_per_batch_size=((1, 4, 2),)), "fixed") == 2


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (SpeculativeConfig(), set()),
        (SpeculativeConfig(eagle_topk=2), {"adaedl"}),
        (SpeculativeConfig(method="ngram"), {"confidence", "adaedl", "dsde"}),
    ],
)
def test_a_request_may_ask_for_what_fits_the_drafts(config: SpeculativeConfig, refused: set[Policy]) -> None:
    everything = {"goodput", "fixed", "confidence", "adaedl", "dsde"}
    assert set(config.request_policies) == everything - refused
    default = make_policy(config)
    assert isinstance(default, ByRequest)
    assert default.default == default.policies["goodput"] != FixedLength(config.budget)
