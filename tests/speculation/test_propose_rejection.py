"""Which distribution and which random numbers a draft draws its candidates from."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from spec_strategies import rows, samplings

from starspec.sampling import reference
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.propose_coupled import propose_token
from starspec.speculation.propose_rejection import draw_children, seed_after
from starspec.speculation.tree import MAX_SUPPORT

V = 12
COUNTS_FREE = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "bad_words": (),
}


@given(st.data(), samplings(V), st.integers(1, 5))
def test_it_is_the_requests_own_distribution_over_the_drafts_logits(
    data: st.DataObject, sampling: SamplingSpec, num: int
) -> None:
    sampling = SamplingSpec(
        **{name: getattr(sampling, name) for name in SamplingSpec.__dataclass_fields__} | COUNTS_FREE
    )
    if sampling.is_greedy:
        return
    logits = data.draw(rows(V))
    draft, log_confidences = draw_children(
        torch.tensor(logits).double(), sampling, 5, None, num_tokens=num, draw_seed=1
    )
    probs = reference.probabilities(reference.adjust(logits, sampling, [], []), sampling)
    expected = {token_id: prob for token_id, prob in enumerate(probs) if prob > 0}
    assert dict(zip(draft.token_ids, draft.probs, strict=True)) == pytest.approx(expected, abs=1e-12)
    assert len(draft.candidates) == min(num, len(expected))
    assert max(log_confidences) <= 1e-12
    assert log_confidences == sorted(log_confidences, reverse=True)


def test_a_distribution_over_many_tokens_is_cut_to_the_likeliest_and_still_sums_to_1() -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    draft, _ = draw_children(logits, SamplingSpec(temperature=2.0), 0, None, num_tokens=3, draw_seed=1)
    assert set(draft.token_ids) == set(logits.topk(MAX_SUPPORT).indices.tolist())
    assert sum(draft.probs) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("broken", [[inf, 0.0, 1.0], [0.0, float("nan"), 1.0], [-inf, -inf, -inf]])
def test_logits_without_a_distribution_give_the_guess_that_coupling_gives(broken: list[float]) -> None:
    draft, log_confidences = draw_children(torch.tensor(broken), SamplingSpec(), 0, None, num_tokens=2, draw_seed=1)
    assert draft.candidates == draft.token_ids == (propose_token(torch.tensor(broken), SamplingSpec(), 0),)
    assert (draft.probs, log_confidences) == ((1.0,), [0.0])


def test_dice_are_those_of_the_path_and_of_no_other() -> None:
    assert seed_after(seed_after(7, [1, 2]), [3]) == seed_after(7, [1, 2, 3])
    paths = [(), (1,), (2,), (1, 2), (2, 1), (1, 1), (0,), (0, 0)]
    assert len({seed_after(7, path) for path in paths}) == len(paths)
    assert all(0 <= seed_after(seed, path) < 2**63 for seed in (0, 2**63 - 1) for path in paths)


def test_siblings_at_one_position_draw_independently() -> None:
    """Chi-square of pairs with a false alarm of 1e-4. With a seed of the position alone all pairs would be equal."""
    logits, sampling = torch.tensor([1.0, 0.0, 0.5]), SamplingSpec()

    def drawn(seed: int, sibling: int) -> int:
        draw_seed = seed_after(seed, [sibling])
        return draw_children(logits, sampling, 9, None, num_tokens=1, draw_seed=draw_seed).draft.candidates[0]

    num = 4000
    found = Counter((drawn(seed, 1), drawn(seed, 2)) for seed in range(num))
    probs = logits.double().softmax(0).tolist()
    cells = [(found[one, two], num * probs[one] * probs[two]) for one in range(3) for two in range(3)]
    assert float(stats.chisquare(*zip(*cells, strict=True)).pvalue) > 1e-4
