import pytest

from starspec.config import SpeculativeConfig
from starspec.errors import ConfigError
from starspec.policy.length.fixed import FixedLength, InSmallBatches, LengthSnapshot, make_policy
from starspec.speculation.budget import NO_DRAFT, DraftBudget


@pytest.mark.parametrize(
    ("num_speculative_tokens", "max_remaining_tokens", "chosen"),
    [(4, 100, 4), (4, 5, 4), (4, 4, 3), (4, 1, 0), (0, 100, 0), (4, 0, 0)],
)
def test_no_draft_is_longer_than_what_may_still_be_emitted(num_speculative_tokens, max_remaining_tokens, chosen):
    snapshot = LengthSnapshot(max_remaining_tokens=max_remaining_tokens)
    policy = FixedLength(DraftBudget.chain(num_speculative_tokens))
    assert policy.choose(snapshot) == DraftBudget.chain(chosen)


def test_a_tree_becomes_less_deep_and_then_nothing() -> None:
    policy = FixedLength(DraftBudget(24, 4, 3))
    assert policy.choose(LengthSnapshot(max_remaining_tokens=100)) == DraftBudget(24, 4, 3)
    assert policy.choose(LengthSnapshot(max_remaining_tokens=3)) == DraftBudget(24, 2, 3)
    assert policy.choose(LengthSnapshot(max_remaining_tokens=1)).num_draft_tokens == 0


@pytest.mark.parametrize(("asked", "remaining", "chosen"), [(2, 100, 2), (9, 100, 9), (9, 4, 3), (0, 100, 0)])
def test_a_request_may_ask_for_its_own_depth(asked, remaining, chosen) -> None:
    snapshot = LengthSnapshot(max_remaining_tokens=remaining, num_steps_asked=asked)
    assert FixedLength(DraftBudget.chain(4)).choose(snapshot) == DraftBudget.chain(chosen)


@pytest.mark.parametrize("asked", [None, 7])
@pytest.mark.parametrize(("num_sequences", "is_drafting"), [(1, True), (4, True), (5, False), (16, False)])
def test_larger_batches_than_the_bound_draft_nothing(asked, num_sequences, is_drafting) -> None:
    policy = InSmallBatches(FixedLength(DraftBudget.chain(4)), max_sequences=4)
    snapshot = LengthSnapshot(max_remaining_tokens=100, num_steps_asked=asked, num_sequences=num_sequences)
    assert policy.choose(snapshot) == (DraftBudget.chain(asked or 4) if is_drafting else NO_DRAFT)


def test_the_config_names_the_bound() -> None:
    assert make_policy(SpeculativeConfig()) == FixedLength(DraftBudget.chain(4))
    bounded = SpeculativeConfig.from_mapping({"disable-by-batch-size": 8})
    assert make_policy(bounded) == InSmallBatches(FixedLength(DraftBudget.chain(4)), 8)
    assert make_policy(bounded, max_num_seqs=9) == make_policy(bounded)
    with pytest.raises(ConfigError, match="disable_by_batch_size"):
        SpeculativeConfig(disable_by_batch_size=0)


def test_rounds_within_the_bound_draft_however_many_wait_for_their_turn() -> None:
    """ExSpec's window holds rows for four batches; a round is of one."""
    policy = make_policy(SpeculativeConfig(disable_by_batch_size=8), max_num_seqs=8)
    assert policy.choose(LengthSnapshot(max_remaining_tokens=100, num_sequences=32)) == DraftBudget.chain(4)
