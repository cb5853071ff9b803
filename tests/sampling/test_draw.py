"""The draw against the float64 reference, and properties that hold for all inputs."""

from __future__ import annotations

from dataclasses import replace
from math import exp, fsum, inf, log, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_strategies import DTYPES, positions, rows, samplings, tensors
from torch import Tensor

from starspec.sampling import draw as draw_module
from starspec.sampling import logit_blocks, reference
from starspec.sampling.counts import TokenCounts
from starspec.sampling.draw import draw, next_token, next_tokens
from starspec.sampling.filters import Support, support
from starspec.sampling.noise import BLOCK, gumbel, stream_key
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.propose_coupled import propose_token

BIG_SAMPLINGS = {
    "unfiltered": SamplingSpec(temperature=0.7, seed=1),
    "hot": SamplingSpec(temperature=20.0, seed=2),
    "top-k": SamplingSpec(temperature=0.7, top_k=50, seed=3),
    "top-p": SamplingSpec(temperature=0.7, top_p=0.95, seed=4),
    "hot top-p": SamplingSpec(temperature=3.0, top_p=0.9, seed=5),
    "almost all": SamplingSpec(temperature=1.0, top_p=1 - 1e-9, seed=6),
    "all filters": SamplingSpec(temperature=1.0, top_k=40, top_p=0.8, min_p=0.02, seed=7),
    "greedy": SamplingSpec(temperature=0.0),
}


def exhaustive_draw(tokens: Support, seed: int, position: int) -> int:
    """Every token's exact noise, no bounds."""
    return int(tokens.token_ids[(tokens.scaled + gumbel(stream_key(seed, position), tokens.token_ids)).argmax()])


def big_row(kind: str, vocab_size: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    spread = {"flat": 0.01, "wide": 12.0}.get(kind, 3.0)
    row = torch.randn(vocab_size, generator=generator) * spread
    if kind == "peaked":
        row[vocab_size // 2] += 30
    return row.to(dtype)


@given(data=st.data(), vocab_size=st.integers(1, 7), prompt_len=st.integers(0, 3))
@settings(max_examples=400)
def test_next_token_is_the_references(data, vocab_size, prompt_len):
    token_ids = st.lists(st.integers(0, vocab_size - 1), max_size=4)
    (row,) = data.draw(tensors(1, vocab_size))
    sampling, prompt, output = data.draw(samplings(vocab_size)), data.draw(token_ids), data.draw(token_ids)
    ours = next_token(row, sampling, len(prompt) + len(output), TokenCounts(prompt, output))
    assert ours == reference.next_token(row.tolist(), sampling, prompt, output)


@given(data=st.data(), vocab_size=st.integers(1, 7))
@settings(max_examples=300)
def test_rows_drawn_at_once_are_those_drawn_one_by_one(data, vocab_size):
    logits = data.draw(tensors(3, vocab_size))
    simple = st.builds(
        SamplingSpec,
        temperature=st.sampled_from([0.3, 1.0, 50.0]),
        min_p=st.sampled_from([0.0, 0.05, 0.9, 1.0]),
        seed=st.integers(0, 2**63 - 1),
    )
    sampling, place = (
        data.draw(st.lists(simple, min_size=3, max_size=3)),
        data.draw(st.lists(positions, min_size=3, max_size=3)),
    )
    expected = [next_token(*each) for each in zip(logits, sampling, place, strict=True)]
    assert next_tokens(logits, sampling, place) == expected


@pytest.mark.parametrize("kind", ["flat", "wide", "peaked"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_real_vocabularies_drawn_at_once_are_those_drawn_one_by_one(kind, dtype, monkeypatch):
    monkeypatch.setattr("starspec.sampling.draw.MAX_ROWS_AT_ONCE", 3)
    row, samplings = big_row(kind, 50_000, dtype), [BIG_SAMPLINGS["unfiltered"], BIG_SAMPLINGS["hot"]] * 2
    drawn = next_tokens(row.expand(4, -1), samplings, range(4))
    assert drawn == [next_token(row, sampling, position) for position, sampling in enumerate(samplings)]


@given(data=st.data(), vocab_size=st.integers(1, 12))
def test_support_is_the_references(data, vocab_size):
    sampling = data.draw(samplings(vocab_size).filter(lambda sampling: not sampling.is_greedy))
    row = torch.tensor(data.draw(rows(vocab_size)), dtype=torch.float64)
    ours = support((row - row.max()) / sampling.temperature, sampling)
    expected = reference.support(row.tolist(), sampling)
    assert dict(zip(ours.token_ids.tolist(), ours.scaled.tolist(), strict=True)) == expected


@pytest.mark.parametrize("sampling", BIG_SAMPLINGS.values(), ids=BIG_SAMPLINGS.keys())
@pytest.mark.parametrize("kind", ["normal", "flat", "peaked", "wide"])
def test_next_token_is_the_references_over_a_big_vocabulary(kind, sampling):
    row = big_row(kind, 20_011, torch.bfloat16)
    logits = row.tolist()
    for position in (0, 1000):
        assert next_token(row, sampling, position) == reference.next_token(logits, sampling, [0] * position, [])


@given(
    seed=st.integers(0, 2**63 - 1),
    position=positions,
    spread=st.floats(0, 30),
    size=st.integers(1, 6000),
    step=st.integers(1, 3),
    first_blocks=st.integers(1, 40),
)
def test_leaving_out_hopeless_tokens_never_changes_the_draw(seed, position, spread, size, step, first_blocks):
    scaled = torch.linspace(0, -spread, size, dtype=torch.float64)
    tokens = Support(torch.arange(5, 5 + step * size, step), scaled)
    with pytest.MonkeyPatch.context() as few:
        few.setattr(draw_module, "FEW_TOKENS", 0)
        few.setattr(logit_blocks, "FIRST_BLOCKS", first_blocks)
        assert draw(tokens, seed, position) == exhaustive_draw(tokens, seed, position)


@given(data=st.data(), vocab_size=st.integers(1, 3 * BLOCK))  # drawing the logits takes most of the time
@settings(max_examples=200)
def test_a_draw_from_a_whole_vocabulary_is_that_from_its_support(data, vocab_size):
    (row,) = data.draw(tensors(1, vocab_size))
    sampling, position = (
        data.draw(samplings(vocab_size).filter(lambda sampling: not sampling.has_penalties)),
        data.draw(positions),
    )
    sampling = replace(sampling, min_tokens=0, bad_words=())
    expected = next_token(row, sampling, position)
    with pytest.MonkeyPatch.context() as few:
        few.setattr(draw_module, "FEW_TOKENS", 0)
        few.setattr(logit_blocks, "FIRST_BLOCKS", 1)
        assert next_token(row, sampling, position) == expected


@given(scaled=st.lists(st.floats(-45, 0), min_size=1, max_size=60), top_p=st.floats(1e-6, 1, exclude_max=True))
def test_top_p_keeps_the_smallest_set_that_reaches_p(scaled, top_p):
    scaled[0] = 0.0
    kept = support(torch.tensor(scaled, dtype=torch.float64), SamplingSpec(top_p=top_p))
    probs = [exp(value) / fsum(map(exp, scaled)) for value in scaled]
    kept_probs = sorted(probs[token_id] for token_id in kept.token_ids)
    dropped = [probs[token_id] for token_id in range(len(probs)) if token_id not in kept.token_ids]
    slack = 1e-10  # mass is counted in units of 2**-40 of the largest probability
    assert fsum(kept_probs) >= top_p - slack
    assert fsum(kept_probs[1:]) < top_p + slack
    assert max(dropped, default=0.0) <= kept_probs[0]


def test_top_p_is_exact_where_mass_meets_p_exactly():
    assert support(torch.zeros(8, dtype=torch.float64), SamplingSpec(top_p=0.5)).token_ids.tolist() == [0, 1, 2, 3]
    assert len(support(torch.zeros(8, dtype=torch.float64), SamplingSpec(top_p=0.5000001)).token_ids) == 5


def test_tokens_tied_with_the_kth_stay():
    scaled = torch.tensor([-1.0, 0.0, -1.0, -2.0], dtype=torch.float64)
    assert support(scaled, SamplingSpec(top_k=2)).token_ids.tolist() == [0, 1, 2]


def test_min_p_keeps_tokens_that_meet_it_exactly():
    scaled = torch.tensor([0.0, log(0.25), log(0.25) - 1e-12], dtype=torch.float64)
    assert support(scaled, SamplingSpec(min_p=0.25)).token_ids.tolist() == [0, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [[1.0, 3.0, 3.0, 2.0, 3.0], [-inf, -inf, 0.0], [-5.0] * 100])
def test_greedy_takes_the_lowest_of_equals(row, dtype):
    logits = torch.tensor(row, dtype=dtype)
    assert next_token(logits, SamplingSpec(temperature=0.0), 5) == row.index(max(row))
    assert propose_token(logits, SamplingSpec(temperature=0.0), 5) == row.index(max(row))


@pytest.mark.parametrize("row", [[0.0, nan, 1.0], [0.0, inf, 1.0], [-inf, nan, -inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_broken_row_gives_its_argmax_and_no_error(row, temperature):
    sampling = SamplingSpec(temperature=temperature)
    assert next_token(torch.tensor(row), sampling, 0) == propose_token(torch.tensor(row), sampling, 0) == 1


@given(data=st.data())
def test_tokens_of_no_probability_are_never_drawn(data):
    row = torch.tensor(data.draw(rows(6)))
    sampling = SamplingSpec(temperature=5.0, seed=data.draw(st.integers(0, 100)))
    assert row[next_token(row, sampling, data.draw(positions))] > -inf


@given(data=st.data())
def test_the_same_row_gives_the_same_token_in_any_company(data):
    sampling, counts = data.draw(samplings(9)), TokenCounts([0, 1], [2, 2])
    logits = data.draw(tensors(3, 9))
    elsewhere = logits.new_zeros(5, 17)[1:4, 3:12].copy_(logits)  # the same values, other strides and alignment
    for row, twin in zip(logits, elsewhere, strict=True):
        alone = next_token(row.clone(), sampling, 4, counts)
        assert next_token(row, sampling, 4, counts) == next_token(twin, sampling, 4, counts) == alone


def test_half_precision_is_read_exactly():
    row = big_row("normal", 5000, torch.bfloat16)
    for sampling in BIG_SAMPLINGS.values():
        assert (
            next_token(row, sampling, 3)
            == next_token(row.float(), sampling, 3)
            == next_token(row.double(), sampling, 3)
        )
