import pytest

from starspec.length.policy import FixedLength, LengthSnapshot


@pytest.mark.parametrize(
    ("num_speculative_tokens", "max_remaining_tokens", "chosen"),
    [(4, 100, 4), (4, 5, 4), (4, 4, 3), (4, 1, 0), (0, 100, 0), (4, 0, 0)],
)
def test_no_draft_is_longer_than_what_may_still_be_emitted(num_speculative_tokens, max_remaining_tokens, chosen):
    snapshot = LengthSnapshot(max_remaining_tokens=max_remaining_tokens)
    assert FixedLength(num_speculative_tokens).choose(snapshot) == chosen
