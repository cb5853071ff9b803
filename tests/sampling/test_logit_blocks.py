"""Logits of a whole vocabulary in blocks: the same support as the plain rule finds among all tokens."""

from __future__ import annotations

from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_strategies import tensors

from starspec.sampling import logit_blocks
from starspec.sampling.adjust import adjust
from starspec.sampling.draw import FEW_TOKENS, draw, next_token
from starspec.sampling.filters import Support, support
from starspec.sampling.logit_blocks import LogitBlocks
from starspec.sampling.noise import BLOCK
from starspec.sampling.spec import SamplingSpec

temperatures = st.sampled_from([1e-3, 0.3, 1.0, 40.0])


def pairs(tokens: Support) -> list[tuple[int, float]]:
    return list(zip(tokens.token_ids.tolist(), tokens.scaled.tolist(), strict=True))


def peaked_row(vocab_size: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    row = torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * 2
    row[:: vocab_size // 40] += 9
    return row.to(dtype)


@given(data=st.data(), vocab_size=st.integers(1, 3 * BLOCK), num=st.integers(1, 3 * BLOCK), temperature=temperatures)
@settings(max_examples=200)
def test_the_largest_are_those_among_all(data, vocab_size, num, temperature):
    (row,) = data.draw(tensors(1, vocab_size))
    found = LogitBlocks(row, float(row.max()), temperature).top_k(num)
    if found is not None:
        scaled = (row.to(torch.float64) - row.max()) / temperature
        assert pairs(found) == pairs(support(scaled, SamplingSpec(top_k=num)))
    else:
        assert num > vocab_size or int(row.isfinite().sum()) < num


@given(data=st.data(), vocab_size=st.integers(1, 3 * BLOCK), top_p=st.floats(1e-6, 1.0, exclude_max=True))
@settings(max_examples=200)
def test_a_nucleus_is_that_among_all_or_not_told(data, vocab_size, top_p):
    (row,) = data.draw(tensors(1, vocab_size))
    temperature = data.draw(temperatures)
    found = LogitBlocks(row, float(row.max()), temperature).nucleus(top_p)
    if found is not None:
        scaled = (row.to(torch.float64) - row.max()) / temperature
        assert pairs(found) == pairs(support(scaled, SamplingSpec(top_p=top_p)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_real_vocabularies_the_nucleus_is_mostly_told(dtype):
    told = [
        LogitBlocks(row, float(row.max()), 0.7).nucleus(0.9) is not None
        for row in (peaked_row(50_000, dtype, seed) for seed in range(20))
    ]
    assert sum(told) >= 18


def test_a_nucleus_whose_edge_is_within_the_bounds_of_the_sum_is_not_told():
    row = torch.full((2 * BLOCK,), -inf)
    row[:8] = 0.0
    assert LogitBlocks(row).nucleus(0.5) is None
    told = LogitBlocks(row).nucleus(0.45)
    assert told is not None
    assert told.token_ids.tolist() == [0, 1, 2, 3]


def test_a_flat_distribution_has_no_likely_tokens_that_reach_its_mass():
    assert LogitBlocks(torch.cat([torch.zeros(1), torch.full((9 * BLOCK,), -9.5)])).nucleus(0.97) is None


def test_what_ties_with_the_last_of_the_largest_is_kept_in_whatever_block_it_is():
    row = torch.zeros(5 * BLOCK)
    row[4 * BLOCK] = 1.0
    found = LogitBlocks(row, 1.0, 1.0).top_k(2)
    assert found is not None
    assert len(found.token_ids) == 5 * BLOCK
    assert LogitBlocks(row, 1.0, 1.0).top_k(logit_blocks.MAX_TOP_K + 1) is None


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-46, 1e-30, 1e30, 1e39, 1e300, 1.7e308])
@pytest.mark.parametrize("bias", [{}, {2: -100.0}])
def test_at_any_temperature_the_token_is_the_one_that_all_tokens_give(temperature, bias):
    row = peaked_row(FEW_TOKENS + BLOCK, torch.float32)
    row[3] = -inf  # as a grammar, bad words or min_tokens leave it
    sampling = SamplingSpec(temperature=temperature, top_p=0.9, logit_bias=bias, seed=5)
    for allowed in (None, row.isfinite()):
        adjusted = adjust(row, sampling, 7, None, allowed)
        plain = support(adjusted.sub(adjusted.max()) / temperature, sampling)
        assert next_token(row, sampling, 7, None, allowed) == draw(plain, 5, 7)
