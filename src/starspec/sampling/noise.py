"""The target's random numbers: noise that is a pure function of (seed, position, token).

Gumbel noise is -log of an exponential variable. The exponentials of 64 neighbouring tokens, a *block*, are generated
together. The least of 64 independent standard exponentials is itself an exponential of rate 64. Each token is equally
likely to have it. What the other tokens have beyond it is again standard exponential and independent of it, because
exponentials have no memory. So the noise of a vocabulary is independent from token to token, exactly as if each token's
noise had been drawn separately. And one number bounds the noise of a whole block: a draw examines only the few blocks
that can win (`sampling/draw.py`).

The bits come from three nested splitmix64 streams (Steele, Lea, Flood 2014). The seed's first output starts the stream
of positions. Each position's output starts a stream whose outputs 0, 1, ... belong to tokens and -1, -2, ... to blocks.
So the bits, the uniforms and the choice of each block's least token are the same on every device and in every process,
in any order of drawing. Only the two logarithms of a Gumbel value may differ in their last bit between math libraries.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # splitmix64's increment
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
UNIFORM_BITS = 52  # together with a half step these fill float64's 53 bits exactly
PLACE_BITS: Final = 6  # the lowest bits of a block's output, which its uniform does not use
BLOCK: Final = 1 << PLACE_BITS  # tokens

_MASK64 = 2**64 - 1


class BlockNoise(NamedTuple):
    """The noise that all tokens of a block share."""

    least: Tensor  # float64, above 0: the least exponential of the block
    place: Tensor  # int64, 0 .. BLOCK - 1: which token of the block has it

    def at(self, index: Tensor) -> BlockNoise:
        """The noise of some of these blocks, [C] of [N]."""
        return BlockNoise(self.least.index_select(0, index), self.place.index_select(0, index))


def stream_key(seed: int, position: int) -> int:
    """The generator state from which the noise of all tokens at one position is made.

    Args:
        seed: the request's, 0 .. 2**63 - 1.
        position: absolute index of the token to be drawn, at least 0.
    Returns: 64 bits as a signed integer, as tensors hold it.
    """
    return _signed(_output(_output(seed, 0), position) + GOLDEN_GAMMA)


def stream_bits(keys: Tensor | int, indices: Tensor) -> Tensor:
    """The outputs with numbers `indices` of splitmix64 streams.

    Args:
        keys: `stream_key`s: one, or int64 of a shape that broadcasts with `indices`.
        indices: int64; negative numbers count backwards from the stream's first output.
    Returns: 64 bits each, int64 of the broadcast shape.
    """
    bits = (indices * _signed(GOLDEN_GAMMA)).add(keys)
    # one buffer for all steps: allocating a megabyte costs more than this arithmetic on it
    shifted = torch.empty_like(bits)
    for num, factor in ((30, MIX_A), (27, MIX_B)):
        bits.bitwise_xor_(_shift(bits, num, out=shifted)).mul_(_signed(factor))
    return bits.bitwise_xor_(_shift(bits, 31, out=shifted))


def to_uniform(bits: Tensor) -> Tensor:
    """Convert 64 bits (any shape) to float64 in (0, 1), never 0 or 1: exactly (the first 52 bits + 1/2) / 2**52."""
    first = _shift(bits, 64 - UNIFORM_BITS, out=torch.empty_like(bits))
    return first.to(torch.float64).add_(0.5).mul_(2.0**-UNIFORM_BITS)


def to_exponential(bits: Tensor) -> Tensor:
    """Convert 64 bits (any shape) to standard exponential noise in float64: -log(1 - u), above 0 and below 37.

    The smallest noise wins. It comes from small uniforms, where float64 is densest.
    """
    return to_uniform(bits).neg_().log1p_().neg_()


def block_noise(keys: Tensor | int, blocks: Tensor) -> BlockNoise:
    """The shared noise of blocks. Args: as `stream_bits`; `blocks` are block numbers (token id // BLOCK)."""
    bits = stream_bits(keys, blocks.bitwise_not())  # -1 - block
    return BlockNoise(to_exponential(bits).div_(BLOCK), bits.bitwise_and(BLOCK - 1))


def gumbel(keys: Tensor | int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of tokens, between -3.7 and 40.9.

    Args:
        keys: `stream_key`s: one, or int64 of a shape that broadcasts with `token_ids`.
        token_ids: int64.
    Returns: float64 of the broadcast shape.
    """
    return _gumbel(block_noise(keys, token_ids >> PLACE_BITS), keys, token_ids)


def block_gumbel(shared: BlockNoise, keys: Tensor | int, blocks: Tensor) -> Tensor:
    """`gumbel` of all tokens of some blocks.

    Args:
        shared: `block_noise` of these keys and blocks.
        keys, blocks: as for `block_noise`.
    Returns: float64 of the shape of `shared`, with one more dimension of size BLOCK.
    """
    token_ids = (blocks << PLACE_BITS).unsqueeze(-1) + torch.arange(BLOCK, device=blocks.device)
    token_keys = keys.unsqueeze(-1) if isinstance(keys, Tensor) else keys
    return _gumbel(BlockNoise(shared.least.unsqueeze(-1), shared.place.unsqueeze(-1)), token_keys, token_ids)


def _gumbel(shared: BlockNoise, keys: Tensor | int, token_ids: Tensor) -> Tensor:
    excess = to_exponential(stream_bits(keys, token_ids))
    excess.masked_fill_(shared.place == token_ids & (BLOCK - 1), 0.0)
    return excess.add_(shared.least).log_().neg_()


def _output(state: int, index: int) -> int:
    """Output number `index` (from 0) of the splitmix64 stream that starts at `state`."""
    bits = (state + (index + 1) * GOLDEN_GAMMA) & _MASK64
    bits = ((bits ^ (bits >> 30)) * MIX_A) & _MASK64
    bits = ((bits ^ (bits >> 27)) * MIX_B) & _MASK64
    return bits ^ (bits >> 31)


def _signed(bits: int) -> int:
    """Interpret 64 bits as two's complement, as int64 does; its sums and products wrap like unsigned ones."""
    bits &= _MASK64
    return bits - 2**64 if bits >= 2**63 else bits


def _shift(bits: Tensor, num: int, out: Tensor) -> Tensor:
    """Logical right shift. int64's own shift copies the sign bit; the mask removes these copies."""
    return torch.bitwise_right_shift(bits, num, out=out).bitwise_and_((1 << (64 - num)) - 1)
