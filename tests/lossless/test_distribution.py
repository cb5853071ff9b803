"""Level 3 of docs/lossless.md: the plain sampler draws what the model and the distribution say.

More than 10**6 draws on a toy vocabulary, half along positions and half along seeds. Seeds are fixed, so these tests
pass always or never; FALSE_ALARM is the chance that a perfect sampler would have failed any of them.
"""

from __future__ import annotations

from math import inf

import pytest
import torch
from scipy import stats
from torch import Tensor

from starspec.sampling import reference
from starspec.sampling.draw import next_token
from starspec.sampling.filters import support
from starspec.sampling.noise import gumbel, stream_key
from starspec.sampling.spec import SamplingSpec

FALSE_ALARM = 1e-4  # over the whole file; each chi-square test has its share (Bonferroni)
NUM_DRAWS = 2**16  # of each distribution
NUM_BY_NEXT_TOKEN = 400  # of those, drawn again by `next_token` itself
SEED, POSITION = 17, 23

# from 30% down to 1 in 10**4, two ties, one token without probability
LOGITS = [3.0, 2.5, 2.5, 2.0, 1.5, 1.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -5.0, -inf]

SAMPLINGS = [
    SamplingSpec(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, top_k, top_p, min_p in [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.5, 0, 1.0, 0.0),
        (5.0, 0, 1.0, 0.0),
        (1.0, 5, 1.0, 0.0),
        (0.7, 2, 1.0, 0.0),  # the second and third are tied: three tokens stay
        (1.0, 0, 0.9, 0.0),
        (0.7, 0, 0.95, 0.0),
        (1.5, 0, 0.5, 0.0),
        (1.0, 0, 1.0, 0.1),
        (2.0, 0, 1.0, 0.3),
        (0.7, 8, 0.9, 0.0),
        (1.0, 0, 0.95, 0.05),
        (1.3, 10, 0.9, 0.1),
        (1.0, 12, 1.0, 0.02),
    ]
]
NUM_TESTS = len(SAMPLINGS) + 8
by_sampling = pytest.mark.parametrize(
    "sampling",
    SAMPLINGS,
    ids=lambda sampling: f"T={sampling.temperature} k={sampling.top_k} p={sampling.top_p} min_p={sampling.min_p}",
)


def draws(sampling: SamplingSpec, where: list[tuple[int, int]]) -> Tensor:
    """The tokens at many (seed, position) at once; the first test below shows that they are `next_token`'s."""
    scaled = (torch.tensor(LOGITS, dtype=torch.float64) - max(LOGITS)) / sampling.temperature
    tokens = support(scaled, sampling)
    keys = torch.tensor([stream_key(*each) for each in where])
    noise = gumbel(keys[:, None], tokens.token_ids)  # [draws, S]
    return tokens.token_ids[(tokens.scaled + noise).argmax(dim=-1)]


def halves(num: int = NUM_DRAWS) -> list[tuple[int, int]]:
    return [(SEED, position) for position in range(num // 2)] + [(seed, POSITION) for seed in range(num // 2)]


def p_value(tokens: Tensor, probs: list[float]) -> float:
    """Chi-square of drawn tokens against a distribution; cells that expect fewer than 5 draws are one cell."""
    expected = torch.tensor(probs, dtype=torch.float64) * len(tokens)
    observed = tokens.bincount(minlength=len(probs)).to(torch.float64)
    assert observed[expected == 0].sum() == 0
    rare = (expected > 0) & (expected < 5)
    cells = [(observed[i], expected[i]) for i in (expected >= 5).nonzero().flatten()]
    if rare.any():
        cells.append((observed[rare].sum(), expected[rare].sum()))
    return float(stats.chisquare(*zip(*cells, strict=True)).pvalue)


@by_sampling
def test_batched_draws_are_next_tokens(sampling):
    every = NUM_DRAWS // NUM_BY_NEXT_TOKEN
    where = halves()[::every]
    one_by_one = [
        next_token(torch.tensor(LOGITS), SamplingSpec(**as_dict(sampling) | {"seed": seed}), position)
        for seed, position in where
    ]
    assert draws(sampling, halves())[::every].tolist() == one_by_one


@by_sampling
def test_draws_follow_the_distribution(sampling):
    probs = reference.probabilities(LOGITS, sampling)
    assert p_value(draws(sampling, halves()), probs) > FALSE_ALARM / NUM_TESTS


def test_this_test_would_notice_a_slightly_wrong_sampler():
    where = halves()
    slightly_wrong = draws(SamplingSpec(temperature=0.73), where)
    assert p_value(slightly_wrong, reference.probabilities(LOGITS, SamplingSpec(temperature=0.7))) < 1e-12


@pytest.mark.parametrize("lag", [1, 2, 7, 64])
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_at_neighbouring_positions_and_seeds_are_independent(along, lag):
    sampling = SamplingSpec(temperature=1.5, top_k=8)
    count = range(NUM_DRAWS)
    where = [(SEED, i) for i in count] if along == "positions" else [(i, POSITION) for i in count]
    tokens = draws(sampling, where)
    probs = torch.tensor(reference.probabilities(LOGITS, sampling), dtype=torch.float64)
    pairs = tokens[:-lag:2] * len(probs) + tokens[lag::2]  # every second start
    assert p_value(pairs, torch.outer(probs, probs).flatten().tolist()) > FALSE_ALARM / NUM_TESTS


def as_dict(sampling: SamplingSpec) -> dict[str, float]:
    return {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
