"""The divergence of a target from what a draft states, against the exact one."""

from __future__ import annotations

from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.speculation.signals import MIN_PROB, divergences, entropies, places_of, top_tokens
from starspec.speculation.tree import ROOT, DraftTree, TopTokens


def exact(target: torch.Tensor, draft: torch.Tensor) -> list[float]:
    p, q = target.double().log_softmax(-1), draft.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).tolist()


def random_logits(seed: int, rows: int = 3, size: int = 12) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 3


def test_by_hand() -> None:
    target = torch.tensor([[0.5, 0.25, 0.25]]).log()
    (told,) = divergences(target, [TopTokens((0,), (log(0.25),))])  # 0.5 against 0.25, 0.5 against 0.75
    assert told == pytest.approx(0.5 * log(2.0) + 0.5 * log(0.5 / 0.75))


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_it_is_at_most_the_exact_divergence_and_equal_to_it_when_all_tokens_are_stated(seed: int, num: int) -> None:
    target, draft = random_logits(seed), random_logits(seed + 1)
    told = divergences(target, top_tokens(draft, num))
    for approximate, true in zip(told, exact(target, draft), strict=True):
        assert 0.0 <= approximate <= true + 1e-4  # of the target, what is left for other tokens is known in float32
        assert num < 12 or approximate == pytest.approx(true, abs=1e-4)


@pytest.mark.parametrize("left", [-10.0, -15.0, -20.0])
def test_it_is_at_most_the_exact_divergence_where_the_draft_leaves_little_for_other_tokens(left: float) -> None:
    """And the target takes one of them: all that differs is that little."""
    draft = torch.full((1, 41), left)
    draft[0, 0] = 0.0
    tops = top_tokens(draft, 16)
    others = [index for index in range(41) if index not in tops[0].token_ids]
    target = torch.full((1, 41), -60.0)
    target[0, others] = 0.0
    (told,) = divergences(target, tops)
    assert told == pytest.approx(exact(target, draft)[0], abs=1e-4)  # all others are alike, so a bucket hides nothing


def test_more_stated_tokens_never_lower_it() -> None:
    target, draft = random_logits(1), random_logits(2)
    told = torch.tensor([divergences(target, top_tokens(draft, num)) for num in range(1, 13)])
    assert bool((told.diff(dim=0) >= -1e-3).all())


def test_rows_may_state_different_numbers_of_tokens() -> None:
    target, draft = random_logits(3, rows=2), random_logits(4, rows=2)
    many, few = top_tokens(draft, 5)[0], top_tokens(draft, 2)[1]
    alone = [*divergences(target[:1], [many]), *divergences(target[1:], [few])]
    assert divergences(target, [many, few]) == pytest.approx(alone, abs=1e-6)
    nothing = TopTokens((), ())
    assert divergences(target, [nothing, many])[0] == 0.0


def test_equal_distributions_do_not_diverge() -> None:
    logits = random_logits(5)
    assert divergences(logits, top_tokens(logits, 4)) == pytest.approx([0.0] * 3, abs=1e-6)


def test_a_token_that_the_draft_excludes_diverges_much_and_not_infinitely() -> None:
    target = torch.tensor([[0.0, 50.0]])
    assert divergences(target, [TopTokens((0,), (0.0,))]) == pytest.approx([-log(MIN_PROB)])


def test_entropy_is_the_log_of_equally_likely_tokens() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf"), float("-inf")], [9.0, 9.0, 9.0, 9.0], [99.0, 0.0, 0.0, 0.0]])
    assert entropies(logits) == pytest.approx([log(2.0), log(4.0), 0.0], abs=1e-6)


def test_no_rows_are_no_divergences() -> None:
    assert divergences(torch.empty(0, 5), []) == []


def test_places_go_from_the_likeliest_path_to_the_least_likely_one() -> None:
    #   committed ── 0: 0.6 ── 1: 0.5 (0.3)
    #             └─ 2: 0.4 ── 3: 0.9 (0.36)
    probs = (0.6, 0.5, 0.4, 0.9)
    tree = DraftTree((1, 2, 3, 4), (ROOT, 0, ROOT, 2), logprobs=tuple(map(log, probs)))
    assert places_of(range(4), tree) == (0, 3, 1, 2)
    assert places_of((2, 3), tree) == (1, 2)
    assert places_of((), tree) == ()


def test_a_sure_child_comes_right_behind_its_parent() -> None:
    tree = DraftTree((1, 2, 3), (ROOT, 0, 1), logprobs=(-0.5, 0.0, 0.0))
    assert places_of(range(3), tree) == (0, 1, 2)
