"""The target's dice: noise that is a pure function of (seed, position, token).

Three nested splitmix64 streams (Steele, Lea, Flood 2014): the seed's first output starts the stream of positions,
each position's output starts the stream of tokens. Integers and uniforms are therefore the same bits on every device
and in every process, in whatever order and company they are drawn; only the two logarithms of a Gumbel may differ in
their last bit between mathematical libraries.
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # splitmix64's increment
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
UNIFORM_BITS = 52  # with the half step below, a uniform fills float64's 53 bits exactly

GUMBEL_MAX = (UNIFORM_BITS + 1) * log(2.0)  # 36.7: no noise is larger (`gumbel <= -log(uniform)`)
GUMBEL_MIN = -log((UNIFORM_BITS + 1) * log(2.0))  # -3.6: and none is smaller

_MASK64 = 2**64 - 1


def stream_key(seed: int, position: int) -> int:
    """The start of the token stream of one position: 64 bits as a signed integer, which is what tensors hold.

    Args:
        seed: the request's, 0 .. 2**63 - 1.
        position: absolute index of the token to be drawn, at least 0.
    """
    return _signed(_output(_output(seed, 0), position))


def uniform(keys: Tensor | int, token_ids: Tensor) -> Tensor:
    """Uniform noise in (0, 1), never 0 nor 1.

    Args:
        keys: `stream_key`s, an int or int64 of a shape that broadcasts with `token_ids`.
        token_ids: int64.
    Returns: float64 of the broadcast shape, (h + 1/2) / 2**52 for the first 52 bits h of splitmix64.
    """
    bits = token_ids * _signed(GOLDEN_GAMMA)
    bits = bits + keys if isinstance(keys, Tensor) else bits.add_(keys)
    bits.add_(_signed(GOLDEN_GAMMA))
    bits = _xor_shift_(bits, 30).mul_(_signed(MIX_A))
    bits = _xor_shift_(bits, 27).mul_(_signed(MIX_B))
    bits = _shift(_xor_shift_(bits, 31), 64 - UNIFORM_BITS)
    return bits.to(torch.float64).add_(0.5).mul_(2.0**-UNIFORM_BITS)


def gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of some tokens at one position.

    Args:
        token_ids: int64 of any shape.
    Returns: float64 of the same shape, in [GUMBEL_MIN, GUMBEL_MAX].
    """
    return to_gumbel(uniform(stream_key(seed, position), token_ids))


def to_gumbel(uniforms: Tensor) -> Tensor:
    """-log(-log(1 - u)): large noise comes from small uniforms, where float64 is densest.

    Never more than -log(u), because -log(1 - u) >= u.
    """
    return uniforms.neg().log1p_().neg_().log_().neg_()


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


def _shift(bits: Tensor, num: int) -> Tensor:
    """Logical right shift: int64's own shift drags the sign bit in, the mask takes it out."""
    return (bits >> num).bitwise_and_((1 << (64 - num)) - 1)


def _xor_shift_(bits: Tensor, num: int) -> Tensor:
    return bits.bitwise_xor_(_shift(bits, num))
