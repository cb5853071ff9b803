"""Corner cases of rejection sampling, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from starspec.sampling.reference import probabilities as reference_probabilities
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.rejection import probabilities, try_candidates
from starspec.speculation.tree import ROOT, DraftTree, Drawing, DrawnCandidates
from starspec.speculation.verify import verify_tree

WITH, WITHOUT = Drawing.WITH_REPLACEMENT, Drawing.WITHOUT_REPLACEMENT
GREEDY = SamplingSpec(temperature=0.0)


def one_hot(*token_ids: int) -> torch.Tensor:
    """A row of logits for each token, which is all but certain."""
    return torch.nn.functional.one_hot(torch.tensor(token_ids), 4).double() * 100


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (((1,), (1, 1), (0.5, 0.5), WITHOUT), "1 distinct tokens"),
        (((1,), (1, 2), (0.5,), WITHOUT), "1 probabilities for 2"),
        (((1,), (1, 2), (1.0, 0.0), WITHOUT), "must be positive"),
        (((1,), (1, 2), (0.5, 0.6), WITHOUT), "sum 1"),
        (((-1,), (-1, 2), (0.5, 0.5), WITHOUT), "must not be negative"),
        (((3,), (1, 2), (0.5, 0.5), WITHOUT), "cannot have been drawn"),
        (((1, 1), (1, 2), (0.5, 0.5), WITHOUT), "possible only with replacement"),
        (((1,), (1, 2), (float("nan"), 0.5), WITHOUT), "must be positive"),
        (((1,), (1, 2), (float("inf"), 0.5), WITHOUT), "must be positive"),
        (((), (), (), WITHOUT), "sum 1"),
    ],
)
def test_what_cannot_have_been_drawn_is_refused(values, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        DrawnCandidates(*values)


def test_a_candidate_that_came_twice_is_fine_with_replacement() -> None:
    trial = try_candidates(torch.tensor([0.1, 0.9]).double(), DrawnCandidates((0, 0), (0, 1), (0.8, 0.2), WITH))
    assert trial.accept_probs == pytest.approx((0.125, 0.0))
    assert trial.residual.tolist() == pytest.approx([0.0, 1.0])


def test_a_token_that_the_target_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="outside the target's vocabulary of 2"):
        try_candidates(torch.tensor([0.5, 0.5]).double(), DrawnCandidates((0,), (0, 2), (0.5, 0.5), WITHOUT))


def test_a_child_that_was_not_drawn_is_refused() -> None:
    drafts = {ROOT: DrawnCandidates((1,), (1,), (1.0,), WITHOUT)}
    with pytest.raises(ValueError, match="node 0 carries token 2, which was not drawn below node -1"):
        DraftTree((2,), (ROOT,), drafts)
    with pytest.raises(ValueError, match="drawn below nodes \\[-1, 1\\] of a tree of 1"):
        DraftTree((1,), (ROOT,), drafts | {1: drafts[ROOT]})


def test_below_a_node_without_probabilities_the_targets_own_draw_decides() -> None:
    drafts = {ROOT: DrawnCandidates((1,), (1,), (1.0,), WITHOUT)}
    sampling = SamplingSpec(seed=3)
    result = verify_tree(DraftTree((1, 3), (ROOT, 0), drafts), one_hot(1, 3, 2), sampling, 0)
    assert result.token_ids == (1, 3, 2)
    without = verify_tree(DraftTree((1, 3), (ROOT, 0)), one_hot(1, 3, 2), sampling, 0)
    assert without == result


def test_without_temperature_it_is_the_greedy_walk() -> None:
    drafts = {
        ROOT: DrawnCandidates((1, 2), (1, 2), (0.9, 0.1), WITHOUT),
        1: DrawnCandidates((3,), (0, 3), (0.5, 0.5), WITHOUT),
    }
    tree = DraftTree((1, 2, 3), (ROOT, ROOT, 1), drafts)
    result = verify_tree(tree, one_hot(2, 0, 3, 1), GREEDY, 5)
    assert result.token_ids == (2, 3, 1)
    assert result.accepted_nodes == (1, 2)


def test_a_candidate_without_a_node_can_be_accepted_and_ends_the_walk() -> None:
    drafts = {ROOT: DrawnCandidates((1, 2), (1, 2), (0.5, 0.5), WITHOUT)}
    result = verify_tree(DraftTree((1,), (ROOT,), drafts), one_hot(2, 0), GREEDY, 5)
    assert (result.token_ids, result.accepted_nodes) == ((2,), ())


def test_a_draft_that_is_its_target_is_accepted_at_once() -> None:
    sampling = SamplingSpec(temperature=0.8, top_p=0.9, seed=4)
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    for seed in range(50):
        drafts = {}
        for node, row in zip((ROOT, 0), logits, strict=False):
            q = probabilities(row, sampling, 0)
            ids = tuple(q.nonzero().flatten().tolist())
            drafts[node] = DrawnCandidates((ids[seed % len(ids)],), ids, tuple(q[list(ids)].tolist()), WITHOUT)
        tree = DraftTree((drafts[ROOT].candidates[0], drafts[0].candidates[0]), (ROOT, 0), drafts)
        assert verify_tree(tree, logits, sampling, 0).num_accepted == 2


class Only:
    """A grammar that always allows the same tokens."""

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids

    def allowed(self, path: Sequence[int]) -> torch.Tensor:
        return torch.tensor([token_id in self.token_ids for token_id in range(4)])


def test_a_candidate_that_the_grammar_refuses_is_never_accepted() -> None:
    drafts = {ROOT: DrawnCandidates((1, 2), (1, 2), (0.9, 0.1), WITHOUT)}
    tree, logits = DraftTree((1, 2), (ROOT, ROOT), drafts), torch.zeros(3, 4)
    firsts = [
        verify_tree(tree, logits, SamplingSpec(seed=seed), 0, constraint=Only(2, 3)).token_ids[0] for seed in range(200)
    ]
    assert set(firsts) == {2, 3}
    assert 70 < firsts.count(2) < 130, "as likely as without drafts"


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSpec(temperature=0.7),
        SamplingSpec(temperature=1.3, top_k=3),
        SamplingSpec(temperature=1.0, top_p=0.8, min_p=0.05),
    ],
)
def test_probabilities_are_the_references(sampling: SamplingSpec) -> None:
    logits = torch.randn(9, generator=torch.Generator().manual_seed(1))
    expected = reference_probabilities(logits.tolist(), sampling)
    assert probabilities(logits, sampling, 0).tolist() == pytest.approx(expected, abs=1e-12)
