"""The noise is the same bits everywhere, and good enough to sample from.

Statistical tests are seeded: they pass always or never. Each states the chance that good noise would have failed it.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from law_strategies import positions, seeds
from scipy import stats
from torch import Tensor

from starspec.speculation import reference
from starspec.speculation.noise import UNIFORM_BITS, gumbel, stream_bits, stream_key, to_gumbel, to_uniform

FALSE_ALARM = 1e-6  # of each statistical assertion below
NUM = 2**17
EXTREME_BITS = torch.tensor([0, 1, 2 ** (UNIFORM_BITS - 1), 2**UNIFORM_BITS - 2, 2**UNIFORM_BITS - 1])

token_lists = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


def uniforms(seed: range | int = 5, position: range | int = 7, token: range | int = 11) -> Tensor:
    """Noise along the one argument that is a range."""
    if isinstance(token, range):
        return to_uniform(stream_bits(stream_key(seed, position), torch.tensor(token)))
    pairs = [(s, position) for s in seed] if isinstance(seed, range) else [(seed, p) for p in position]
    keys = torch.tensor([stream_key(*pair) for pair in pairs])
    return to_uniform(stream_bits(keys, torch.tensor([token])))


WALKS = {
    "tokens": lambda offset: uniforms(token=range(offset, offset + NUM)),
    "positions": lambda offset: uniforms(position=range(offset, offset + NUM)),
    "seeds": lambda offset: uniforms(seed=range(offset, offset + NUM)),
}
along = pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS.keys())


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
    assert gumbel(seed, position, torch.tensor(token_ids)).tolist() == pytest.approx(expected, rel=1e-13, abs=1e-15)


@given(seed=seeds, position=positions, token_ids=token_lists)
def test_noise_of_a_token_does_not_depend_on_the_company_it_is_drawn_in(seed, position, token_ids):
    together = stream_bits(stream_key(seed, position), torch.tensor(token_ids))
    alone = [stream_bits(stream_key(seed, position), torch.tensor([token_id])) for token_id in token_ids]
    keys = torch.tensor([[stream_key(seed, position)], [stream_key(seed, position + 1)]])
    assert together.tolist() == torch.cat(alone).tolist()
    assert stream_bits(keys, torch.tensor(token_ids))[0].tolist() == together.tolist()


def test_uniforms_are_never_0_or_1_and_gumbel_noise_is_always_finite():
    uniform = to_uniform(EXTREME_BITS)
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert to_gumbel(EXTREME_BITS).isfinite().all()


def test_gumbel_noise_never_exceeds_its_cheap_bound():
    bits = torch.cat((EXTREME_BITS, stream_bits(stream_key(1, 2), torch.arange(100_000))))
    assert (to_gumbel(bits) <= -to_uniform(bits).log()).all()


@along
def test_noise_is_uniform(walk):
    # Kolmogorov-Smirnov for the shape, chi-square over the last 8 bits for the ones that it cannot see
    sample = walk(0)
    assert stats.kstest(sample.numpy(), "uniform").pvalue > FALSE_ALARM
    low_bits = (sample * 2**UNIFORM_BITS).to(torch.int64) & 255
    assert stats.chisquare(low_bits.bincount(minlength=256).numpy()).pvalue > FALSE_ALARM


@along
@pytest.mark.parametrize("lag", [1, 2, 64, 1000])
def test_neighbours_are_independent(walk, lag):
    # chi-square of the 32 x 32 contingency table of (one, its neighbour at the lag)
    cells = (walk(0) * 32).to(torch.int64) * 32 + (walk(lag) * 32).to(torch.int64)
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
    # avalanche: the number of flips of each of 52 bits is binomial(n, 1/2)
    num = 4096
    bases = [(reference.splitmix64(0, i) >> 1, reference.splitmix64(1, i) >> 24) for i in range(num)]
    flipped = [(s ^ (1 << flip), p) if what == "seed" else (s, p ^ (1 << flip)) for s, p in bases]
    token = torch.tensor([3])
    before = stream_bits(torch.tensor([stream_key(*each) for each in bases]), token)
    after = stream_bits(torch.tensor([stream_key(*each) for each in flipped]), token)
    changed = [int(((before ^ after) >> bit & 1).sum()) for bit in range(UNIFORM_BITS)]
    limit = -stats.norm.ppf(FALSE_ALARM / UNIFORM_BITS / 2) * math.sqrt(num) / 2
    assert max(abs(count - num / 2) for count in changed) < limit
