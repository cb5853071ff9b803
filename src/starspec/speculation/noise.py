"""The target's dice: noise that is a pure function of (seed, position, token).

Three nested splitmix64 streams (Steele, Lea, Flood 2014): the seed's first output starts the stream of positions,
each position's output starts the stream of tokens. Integers and uniforms are therefore the same bits on every device
and in every process, in whatever order and company they are drawn; only the two logarithms of a Gumbel may differ in
their last bit between mathematical libraries.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # splitmix64's increment
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
UNIFORM_BITS = 52  # and a half step fill float64's 53 bits exactly

_MASK64 = 2**64 - 1


def stream_key(seed: int, position: int) -> int:
    """The state from which the noise of all tokens at one position is made.

    Args:
        seed: the request's, 0 .. 2**63 - 1.
        position: absolute index of the token to be drawn, at least 0.
    Returns: 64 bits as a signed integer, which is what tensors hold.
    """
    return _signed(_output(_output(seed, 0), position) + GOLDEN_GAMMA)


def stream_bits(keys: Tensor | int, token_ids: Tensor) -> Tensor:
    """The first 52 bits of splitmix64's output number `token_ids` of each stream.

    Args:
        keys: `stream_key`s: one, or int64 of a shape that broadcasts with `token_ids`.
        token_ids: int64.
    Returns: int64 in [0, 2**52) of the broadcast shape.
    """
    bits = (token_ids * _signed(GOLDEN_GAMMA)).add(keys)
    shifted = torch.empty_like(bits)  # one buffer for all: a fresh megabyte costs more than the arithmetic on it
    for num, factor in ((30, MIX_A), (27, MIX_B)):
        bits.bitwise_xor_(_shift(bits, num, out=shifted)).mul_(_signed(factor))
    bits.bitwise_xor_(_shift(bits, 31, out=shifted))
    return _shift(bits, 64 - UNIFORM_BITS, out=bits)


def to_uniform(bits: Tensor) -> Tensor:
    """Bits of any shape as float64 in (0, 1), never 0 nor 1: (bits + 1/2) / 2**52, exactly."""
    return bits.to(torch.float64).add_(0.5).mul_(2.0**-UNIFORM_BITS)


def to_gumbel(bits: Tensor) -> Tensor:
    """Bits of any shape as standard Gumbel noise in float64: -log(-log(1 - u)), from -3.6 to 36.7.

    Large noise comes from small uniforms, where float64 is densest. Never more than -log(u), as -log(1 - u) >= u.
    """
    return to_uniform(bits).neg_().log1p_().neg_().log_().neg_()


def gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of some tokens [S] int64 at one position: float64 [S]."""
    return to_gumbel(stream_bits(stream_key(seed, position), token_ids))


def _output(state: int, index: int) -> int:
    """Output number `index` (from 0) of the splitmix64 stream that starts at `state`."""
    bits = (state + (index + 1) * GOLDEN_GAMMA) & _MASK64
    bits = ((bits ^ (bits >> 30)) * MIX_A) & _MASK64
    bits = ((bits ^ (bits >> 27)) * MIX_B) & _MASK64
    return bits ^ (bits >> 31)


def _signed(bits: int) -> int:
    """Read 64 bits as two's complement, int64's own reading; its sums and products wrap as unsigned ones do."""
    bits &= _MASK64
    return bits - 2**64 if bits >= 2**63 else bits


def _shift(bits: Tensor, num: int, out: Tensor) -> Tensor:
    """Logical right shift: int64's own shift drags the sign bit in, the mask takes it out."""
    return torch.bitwise_right_shift(bits, num, out=out).bitwise_and_((1 << (64 - num)) - 1)
