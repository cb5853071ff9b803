"""The walk through a tree. Its losslessness is tested in tests/lossless."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spec_strategies import samplings, tensors, trees

from starspec.sampling.counts import TokenCounts
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import EMPTY_TREE, ROOT, DraftTree
from starspec.speculation.verify import VerifyResult, verify_tree, verify_trees

GREEDY = SamplingSpec(temperature=0.0)
#   committed ── 0:"0" ── 1:"1" ── 3:"3"
#                    └─── 2:"2"
TREE = DraftTree((0, 1, 2, 3), (ROOT, 0, 0, 1))


def target_logits(*token_ids: int) -> torch.Tensor:
    """Logits whose argmax in row i is token_ids[i]."""
    return torch.nn.functional.one_hot(torch.tensor(token_ids), 5).float()


@pytest.mark.parametrize(
    ("rows", "result"),
    [
        ((4, 1, 3, 4, 4), VerifyResult((), (4,))),  # recovered token at once
        ((0, 2, 4, 3, 4), VerifyResult((0, 2), (0, 2, 3))),  # the second sibling
        ((0, 1, 3, 4, 2), VerifyResult((0, 1, 3), (0, 1, 3, 2))),  # everything, and the bonus token
        ((0, 1, 2, 3, 4), VerifyResult((0, 1), (0, 1, 2))),  # a token that is drafted, but elsewhere
    ],
)
def test_walk_goes_to_the_child_that_carries_the_targets_token(rows, result):
    assert verify_tree(TREE, target_logits(*rows), GREEDY, prefix_len=3) == result
    assert result.num_accepted == len(result.token_ids) - 1


def test_an_empty_tree_is_a_plain_step():
    assert verify_tree(EMPTY_TREE, target_logits(3), GREEDY, prefix_len=1) == VerifyResult((), (3,))


def test_every_node_is_drawn_at_its_own_position_with_its_own_path():
    # frequency pushes the target off a token once the walk itself has emitted it
    sampling = SamplingSpec(temperature=0.0, frequency_penalty=2.0, min_tokens=2, end_token_ids=(4,))
    logits = torch.tensor([[1.0, 0, 0, 0, 9], [1.0, 0.5, 0, 0, 9], [1.0, 0.5, 0.2, 0, 9]])
    result = verify_tree(DraftTree.chain((0, 1)), logits, sampling, 7, TokenCounts([2] * 7))
    assert result.token_ids == (0, 1, 4)


def test_counts_are_not_changed():
    counts = TokenCounts([1], [2])
    sampling = SamplingSpec(temperature=0.0, presence_penalty=0.1)
    verify_tree(TREE, target_logits(0, 1, 2, 3, 4), sampling, 2, counts)
    assert counts.seen().token_ids.tolist() == [1, 2]


def test_wrong_number_of_rows_is_our_bug():
    with pytest.raises(AssertionError, match="one row of logits"):
        verify_tree(TREE, target_logits(0, 1), GREEDY, 3)


@given(data=st.data(), vocab_size=st.integers(1, 5), num_trees=st.integers(1, 4))
def test_a_batch_is_its_trees_one_by_one(data, vocab_size, num_trees):
    plain = st.just(SamplingSpec(temperature=0.0))
    batch = data.draw(st.lists(trees(vocab_size), min_size=num_trees, max_size=num_trees))
    each_sampling = [data.draw(st.one_of(plain, samplings(vocab_size))) for _ in batch]
    prefix_lens = data.draw(st.lists(st.integers(2, 9), min_size=num_trees, max_size=num_trees))
    counts = [TokenCounts([0], [0] * (length - 1)) for length in prefix_lens]
    logits = data.draw(tensors(sum(tree.num_draft_tokens + 1 for tree in batch), vocab_size))

    results = verify_trees(batch, logits, each_sampling, prefix_lens, counts)

    start = 0
    for result, tree, sampling, prefix_len, seen in zip(
        results, batch, each_sampling, prefix_lens, counts, strict=True
    ):
        part = logits[start : start + tree.num_draft_tokens + 1]
        assert result == verify_tree(tree, part, sampling, prefix_len, seen)
        start += tree.num_draft_tokens + 1


def test_an_empty_batch_has_no_results():
    assert verify_trees([], torch.empty(0, 5), [], [], []) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_batched_argmax_takes_the_lowest_of_equals_like_the_single_one(dtype):
    # every row has its largest value many times
    logits = (torch.randn(6, 50_000, generator=torch.Generator().manual_seed(0)) * 2).round().clamp(max=6).to(dtype)
    assert int((logits[0] == logits[0].max()).sum()) > 1
    results = verify_trees([EMPTY_TREE] * 6, logits, [GREEDY] * 6, [1] * 6, [None] * 6)
    for result, row in zip(results, logits, strict=True):
        (token_id,) = result.token_ids
        assert token_id == int((row == row.max()).nonzero()[0])
        assert verify_tree(EMPTY_TREE, row[None], GREEDY, 1).token_ids == (token_id,)


SIMPLE_SAMPLINGS = st.builds(
    SamplingSpec,
    temperature=st.sampled_from([0.3, 1.0, 4.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 99),
)


@given(data=st.data())
def test_trees_whose_nodes_are_drawn_at_once_get_the_results_of_those_walked(data):
    drafts, samplings_of, parts = [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        tree = data.draw(trees(5))
        drafts.append(tree)
        samplings_of.append(data.draw(st.one_of(samplings(5), SIMPLE_SAMPLINGS)))
        parts.append(data.draw(tensors(tree.num_draft_tokens + 1, 5)).double())
    prefix_lens = [data.draw(st.integers(2, 9)) for _ in drafts]
    counts = [TokenCounts([1] * (length - 1), [2]) for length in prefix_lens]
    told = zip(drafts, parts, samplings_of, prefix_lens, counts, strict=True)
    expected = [verify_tree(*each) for each in told]
    with pytest.MonkeyPatch.context() as patch:  # as if the logits were on an accelerator
        patch.setattr("starspec.speculation.verify.is_on_cpu", lambda _logits: False)
        assert verify_trees(drafts, torch.cat(parts), samplings_of, prefix_lens, counts) == expected
