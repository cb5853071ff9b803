from dataclasses import replace
from typing import get_args

import pytest

from starspec.config import FIXED_LENGTH, LengthConfig, Policy, SpeculativeConfig
from starspec.errors import ConfigError
from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.adaedl import AdaEdl
from starspec.policy.length.by_request import ByRequest
from starspec.policy.length.divergence import CALIBRATION_ROUNDS, DivergenceHistory
from starspec.policy.length.dsde import Dsde
from starspec.policy.length.fixed import BatchSizes, ByBatchSize, FixedLength, InSmallBatches
from starspec.policy.length.goodput import Goodput
from starspec.policy.length.make import make_policy
from starspec.policy.length.snapshot import OFF, Choice, LengthPolicy, RoundSnapshot, SequenceSnapshot
from starspec.speculation.budget import NO_DRAFT, DraftBudget


def choose(
    policy: LengthPolicy, max_remaining_tokens: int, num_steps_asked: int | None = None, num_sequences: int = 1
) -> DraftBudget:
    """For one sequence, in a round of so many."""
    sequence = SequenceSnapshot(max_remaining_tokens=max_remaining_tokens, num_steps_asked=num_steps_asked)
    (chosen,) = policy.choose(RoundSnapshot(sequences=[sequence], num_sequences=num_sequences))
    return chosen.budget


@pytest.mark.parametrize(
    ("num_speculative_tokens", "max_remaining_tokens", "chosen"),
    [(4, 100, 4), (4, 5, 4), (4, 4, 3), (4, 1, 0), (0, 100, 0), (4, 0, 0)],
)
def test_no_draft_is_longer_than_what_may_still_be_emitted(
    num_speculative_tokens: int, max_remaining_tokens: int, chosen: int
) -> None:
    policy = FixedLength(DraftBudget.chain(num_speculative_tokens))
    assert choose(policy, max_remaining_tokens) == DraftBudget.chain(chosen)


def test_a_tree_becomes_less_deep_and_then_nothing() -> None:
    policy = FixedLength(DraftBudget(24, 4, 3))
    assert choose(policy, max_remaining_tokens=100) == DraftBudget(24, 4, 3)
    assert choose(policy, max_remaining_tokens=3) == DraftBudget(24, 2, 3)
    assert choose(policy, max_remaining_tokens=1).num_draft_tokens == 0


@pytest.mark.parametrize(("asked", "remaining", "chosen"), [(2, 100, 2), (9, 100, 9), (9, 4, 3), (0, 100, 0)])
def test_a_request_may_ask_for_its_own_depth(asked: int, remaining: int, chosen: int) -> None:
    assert choose(FixedLength(DraftBudget.chain(4)), remaining, asked) == DraftBudget.chain(chosen)


@pytest.mark.parametrize("asked", [None, 7])
@pytest.mark.parametrize(("num_sequences", "is_drafting"), [(1, True), (4, True), (5, False), (16, False)])
def test_larger_batches_than_the_bound_draft_nothing(asked: int | None, num_sequences: int, is_drafting: bool) -> None:
    policy = InSmallBatches(FixedLength(DraftBudget.chain(4)), max_sequences=4)
    assert choose(policy, 100, asked, num_sequences) == (DraftBudget.chain(asked or 4) if is_drafting else NO_DRAFT)


def test_the_config_names_the_bound() -> None:
    unbounded = make_policy(SpeculativeConfig(length=FIXED_LENGTH))
    assert isinstance(unbounded, ByRequest)
    assert unbounded.default == FixedLength(DraftBudget.chain(4))
    bounded = SpeculativeConfig.from_mapping({"disable-by-batch-size": 8, "length": {"policy": "fixed"}})
    assert make_policy(bounded) == InSmallBatches(unbounded, 8)
    assert make_policy(bounded, max_num_seqs=9) == make_policy(bounded)
    with pytest.raises(ConfigError, match="disable_by_batch_size"):
        SpeculativeConfig(disable_by_batch_size=0)


def test_rounds_within_the_bound_draft_however_many_wait_for_their_turn() -> None:
    """ExSpec's window holds rows for four batches; a round is of one."""
    policy = make_policy(SpeculativeConfig(length=FIXED_LENGTH, disable_by_batch_size=8), max_num_seqs=8)
    assert choose(policy, 100, num_sequences=32) == DraftBudget.chain(4)


def test_each_sequence_of_a_round_has_a_budget_of_its_own() -> None:
    asked = [(100, None, 64), (3, None, 64), (100, 9, 64), (100, 9, 2), (100, None, 0)]
    sequences = [
        SequenceSnapshot(max_remaining_tokens=remaining, num_steps_asked=steps, max_draft_tokens=most)
        for remaining, steps, most in asked
    ]
    snapshot = RoundSnapshot(sequences=sequences, num_sequences=5)
    policy = FixedLength(DraftBudget.chain(4))
    assert policy.choose(snapshot) == [Choice.of(DraftBudget.chain(each)) for each in (4, 2, 9, 2, 0)]
    assert InSmallBatches(policy, 4).choose(snapshot) == [OFF] * 5
    assert InSmallBatches(policy, 5).choose(snapshot) == policy.choose(snapshot)


@pytest.mark.parametrize(
    ("policy", "made"),
    [
        ("goodput", Goodput(DraftBudget.chain(8, 0.4))),
        ("fixed", FixedLength(DraftBudget.chain(4))),
        ("confidence", FixedLength(DraftBudget.chain(8, 0.4))),
        ("adaedl", AdaEdl(DraftBudget.chain(8))),
        ("dsde", Dsde(replace(DraftBudget.chain(8), num_stated=16))),
    ],
)
def test_the_config_names_the_policy(policy: str, made: LengthPolicy) -> None:
    chosen = make_policy(SpeculativeConfig.from_mapping({"length": {"policy": policy}}))
    assert isinstance(chosen, ByRequest)
    assert chosen.default == made


@pytest.mark.parametrize("policy", get_args(Policy))
@pytest.mark.parametrize(("num_sequences", "most"), [(1, 5), (2, 3), (8, 3), (9, 0)])
def test_a_table_bounds_any_policy(policy: str, num_sequences: int, most: int) -> None:
    """For sequences of which much is accepted, and new ones. Goodput has not grown yet."""
    rows = [[1, 1, 5], [2, 8, 3], [9, 64, 0]]
    chosen = make_policy(
        SpeculativeConfig.from_mapping({"num_speculative_tokens_per_batch_size": rows, "length": {"policy": policy}})
    )
    for known in (confident(), SequenceSnapshot(max_remaining_tokens=99)):
        snapshot = RoundSnapshot(sequences=[known] * num_sequences, num_sequences=num_sequences)
        found = [each.budget.num_steps for each in chosen.choose(snapshot)]
        assert max(found) <= most
        assert bool(max(found)) == bool(most)
        if policy in ("fixed", "confidence", "adaedl") or (policy == "dsde" and known.acceptance):
            assert found == [most] * num_sequences


def confident() -> SequenceSnapshot:
    """Eight draft tokens were accepted in each round."""
    divergence, acceptance = DivergenceHistory(), Acceptance()
    for _ in range(CALIBRATION_ROUNDS):
        divergence.add_round([0.0], 8)
        acceptance.add(8, 8)
    return SequenceSnapshot(max_remaining_tokens=99, divergence=divergence, acceptance=acceptance)


@pytest.mark.parametrize("policy", get_args(Policy))
@pytest.mark.parametrize("most", [0, 1, 2, 4])
def test_the_configured_length_bounds_any_policy(policy: Policy, most: int) -> None:
    config = SpeculativeConfig(num_speculative_tokens=most, length=LengthConfig(policy=policy))
    (choice,) = make_policy(config).choose(RoundSnapshot(sequences=[confident()], num_sequences=1))
    assert bool(most) <= choice.budget.num_steps <= most


@pytest.mark.parametrize(("num_sequences", "length"), [(1, 5), (2, 3), (6, 3), (7, 4), (16, 0)])
def test_a_table_gives_each_batch_size_its_length_and_leaves_the_others(num_sequences: int, length: int) -> None:
    table = (BatchSizes(1, 1, 5), BatchSizes(2, 6, 3), BatchSizes(16, 64, 0))
    snapshot = RoundSnapshot(sequences=[SequenceSnapshot(max_remaining_tokens=99)], num_sequences=num_sequences)
    (chosen,) = ByBatchSize(FixedLength, DraftBudget.chain(4), table).choose(snapshot)
    assert chosen.budget.num_draft_tokens == length
