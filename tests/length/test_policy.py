import pytest

from starspec.length.policy import FixedLength, LengthSnapshot
from starspec.speculation.budget import DraftBudget


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
