"""The noise is the same bits everywhere, and good enough to sample from.

Statistical tests are seeded: they pass always or never. Each states the chance that good noise would have failed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from spec_strategies import positions, seeds
from torch import Tensor

from starspec.sampling import reference
from starspec.sampling.noise import (
    BLOCK,
    UNIFORM_BITS,
    block_gumbel,
    block_noise,
    gumbel,
    stream_bits,
    stream_key,
    to_exponential,
    to_uniform,
)

FALSE_ALARM = 1e-6  # of each statistical assertion below
NUM = 2**17
REST = 64 - UNIFORM_BITS
EXTREME_BITS = torch.tensor([0, 2**REST - 1, 2**REST, 2**63 - 1, -(2**63), -1 - 2**REST, -1])  # as unsigned numbers

token_lists = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


def uniforms(seed: range | int = 5, position: range | int = 7, token: range | int = 11) -> Tensor:
    """Noise along the one argument that is a range."""
    return to_uniform(stream_bits(*streams(seed, position, token)))


def quantiles(seed: range | int = 5, position: range | int = 7, token: range | int = 11) -> Tensor:
    """Gumbel noise along the one argument that is a range, by its distribution function: uniform if it is Gumbel."""
    return gumbel(*streams(seed, position, token)).neg().exp().neg().exp()


def streams(seed: range | int, position: range | int, token: range | int) -> tuple[Tensor | int, Tensor]:
    if isinstance(token, range):
        return stream_key(seed, position), torch.tensor(token)
    pairs = [(s, position) for s in seed] if isinstance(seed, range) else [(seed, p) for p in position]
    return torch.tensor([stream_key(*pair) for pair in pairs]), torch.tensor([token])


def walk(what: Callable[..., Tensor], argument: str, offset: int = 0) -> Tensor:
    return what(**{argument: range(offset, offset + NUM)})


# steps in 0 .. 1; a distribution function has fewer than a uniform
FINEST = {uniforms: 2**UNIFORM_BITS, quantiles: 2**40}
along = pytest.mark.parametrize("argument", ["token", "position", "seed"])
of_both = pytest.mark.parametrize("what", FINEST)


def test_reference_gives_the_published_numbers_of_splitmix64():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [reference.splitmix64(1234567, index) for index in range(4)] == published


@given(seed=seeds, position=positions, token_ids=token_lists)
def test_uniforms_are_the_references_bit_for_bit(seed, position, token_ids):
    bits = stream_bits(stream_key(seed, position), torch.tensor(token_ids))
    assert to_uniform(bits).tolist() == [reference.uniform(seed, position, token_id) for token_id in token_ids]


@given(seed=seeds, position=positions, token_ids=token_lists)
def test_gumbel_noise_is_the_references_up_to_the_logarithms_last_bits(seed, position, token_ids):
    expected = [reference.gumbel(seed, position, token_id) for token_id in token_ids]
    ours = gumbel(stream_key(seed, position), torch.tensor(token_ids))
    assert ours.tolist() == pytest.approx(expected, rel=1e-13, abs=1e-15)


@given(seed=seeds, position=positions, token_ids=token_lists)
def test_noise_of_a_token_does_not_depend_on_the_company_it_is_drawn_in(seed, position, token_ids):
    key, other = stream_key(seed, position), stream_key(seed, position + 1)
    together = gumbel(key, torch.tensor(token_ids)).tolist()
    assert together == [float(gumbel(key, torch.tensor([token_id]))) for token_id in token_ids]
    assert gumbel(torch.tensor([[key], [other]]), torch.tensor(token_ids))[0].tolist() == together
    blocks = torch.tensor([token_id // BLOCK for token_id in token_ids])
    for keys in (key, torch.tensor([[other], [key]])):
        of_blocks = block_gumbel(block_noise(keys, blocks), keys, blocks).view(-1, len(blocks), BLOCK)[-1]
        assert [float(row[token_id % BLOCK]) for row, token_id in zip(of_blocks, token_ids, strict=True)] == together


def test_uniforms_are_never_0_or_1_and_gumbel_noise_is_always_finite():
    uniform = to_uniform(EXTREME_BITS)
    assert uniform.min() > 0
    assert uniform.max() < 1
    exponential = to_exponential(EXTREME_BITS)
    assert exponential.min() > 0
    assert exponential.div(BLOCK).log().isfinite().all()
    assert exponential.add(exponential.max()).log().isfinite().all()


def test_one_token_of_a_block_has_its_largest_noise_and_none_has_more_than_that():
    blocks = torch.arange(2**12)
    shared = block_noise(stream_key(1, 2), blocks)
    noise = block_gumbel(shared, stream_key(1, 2), blocks)
    largest = noise.max(dim=-1)
    assert largest.values.equal(shared.least.log().neg())
    assert largest.indices.equal(shared.place)


def test_any_token_of_a_block_is_as_likely_to_have_its_largest_noise_however_large_that_is():
    # chi-square of the table of (whose, how large in quarters)
    shared = block_noise(stream_key(3, 4), torch.arange(NUM))
    quarters = (shared.least * -BLOCK).exp().mul(4).to(torch.int64)
    cells = shared.place * 4 + quarters
    assert stats.chisquare(cells.bincount(minlength=4 * BLOCK).numpy()).pvalue > FALSE_ALARM


@along
@of_both
def test_noise_is_uniform(what, argument):
    # Kolmogorov-Smirnov for the shape, chi-square over the last 8 bits for the ones that it cannot see
    sample = walk(what, argument)
    assert stats.kstest(sample.numpy(), "uniform").pvalue > FALSE_ALARM
    low_bits = (sample * FINEST[what]).to(torch.int64) & 255
    assert stats.chisquare(low_bits.bincount(minlength=256).numpy()).pvalue > FALSE_ALARM


@along
@pytest.mark.parametrize("lag", [1, 2, 63, 64, 1000])
@of_both
def test_neighbours_are_independent(what, argument, lag):
    # chi-square of the 32 x 32 contingency table of (one, its neighbour at the lag)
    cells = (walk(what, argument) * 32).to(torch.int64) * 32 + (walk(what, argument, lag) * 32).to(torch.int64)
    assert stats.chisquare(cells.bincount(minlength=1024).numpy()).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((5, 7, 11), (5, 8, 10)),
        ((5, 7, 11), (6, 6, 11)),
        ((5, 7, 11), (6, 7, 10)),
        ((5, 5, 11), (11, 5, 5)),
        ((5, 7, 11), (2**62 + 5, 7, 11)),
    ],
    ids=["position-token", "seed-position", "seed-token", "swapped", "high seed bit"],
)
def test_streams_that_a_weak_hash_would_mix_up_are_independent(one, other):
    def stream(seed: int, position: int, token: int) -> Tensor:
        keys = torch.tensor([stream_key(seed, position + i) for i in range(0, 3 * NUM // 8, 3)])
        return to_uniform(stream_bits(keys, torch.tensor([token])))

    cells = (stream(*one) * 16).to(torch.int64) * 16 + (stream(*other) * 16).to(torch.int64)
    assert stats.chisquare(cells.bincount(minlength=256).numpy()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("flip", range(0, 62, 5))
@pytest.mark.parametrize("what", ["seed", "position"])
def test_flipping_one_bit_of_an_argument_flips_each_bit_of_the_noise_half_of_the_time(flip, what):
    # avalanche: the number of flips of each of 64 bits is binomial(n, 1/2)
    num = 4096
    bases = [(reference.splitmix64(0, i) >> 1, reference.splitmix64(1, i) >> 24) for i in range(num)]
    flipped = [(s ^ (1 << flip), p) if what == "seed" else (s, p ^ (1 << flip)) for s, p in bases]
    token = torch.tensor([3])
    before = stream_bits(torch.tensor([stream_key(*each) for each in bases]), token)
    after = stream_bits(torch.tensor([stream_key(*each) for each in flipped]), token)
    changed = [int(((before ^ after) >> bit & 1).sum()) for bit in range(64)]
    limit = -stats.norm.ppf(FALSE_ALARM / 64 / 2) * math.sqrt(num) / 2
    assert max(abs(count - num / 2) for count in changed) < limit
