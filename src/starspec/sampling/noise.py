"""The target's dice: noise that is a pure function of (seed, position, token).

Gumbel noise is -log of an exponential variable. Those of 64 neighbouring tokens, a *block*, are made from the top: of
64 independent standard exponentials the least is an exponential of rate 64, any token is as likely to have it as any
other, and what the others have more is again standard exponential, independent of all that (exponentials have no
memory). So the noise of a vocabulary is independent from token to token, as if each had been drawn apart, and one
number bounds that of a whole block: a draw looks closely at the few blocks that can win (`sampling.draw`).

The bits come from three nested splitmix64 streams (Steele, Lea, Flood 2014): the seed's first output starts the stream
of positions, each position's output starts the stream of tokens, output 0 onwards, and of blocks, output -1 downwards.
Bits, and with them the uniforms and who is the least of a block, are therefore the same on every device and in every
process, in whatever order and company they are drawn; only the two logarithms of a Gumbel may differ in their last bit
between mathematical libraries.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # splitmix64's increment
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
UNIFORM_BITS = 52  # and a half step fill float64's 53 bits exactly
PLACE_BITS: Final = 6  # the lowest ones of a block's, which are none of its uniform's
BLOCK: Final = 1 << PLACE_BITS  # tokens

_MASK64 = 2**64 - 1


class BlockNoise(NamedTuple):
    """What the tokens of a block have in common."""

    least: Tensor  # float64, above 0: the least of their exponentials
    place: Tensor  # int64, 0 .. BLOCK - 1: whose it is

    def at(self, index: Tensor) -> BlockNoise:
        """That of some of these blocks, [C] of [N]."""
        return BlockNoise(self.least.index_select(0, index), self.place.index_select(0, index))


def stream_key(seed: int, position: int) -> int:
    """The state from which the noise of all tokens at one position is made.

    Args:
        seed: the request's, 0 .. 2**63 - 1.
        position: absolute index of the token to be drawn, at least 0.
    Returns: 64 bits as a signed integer, which is what tensors hold.
    """
    return _signed(_output(_output(seed, 0), position) + GOLDEN_GAMMA)


def stream_bits(keys: Tensor | int, indices: Tensor) -> Tensor:
    """splitmix64's outputs number `indices` of each stream.

    Args:
        keys: `stream_key`s: one, or int64 of a shape that broadcasts with `indices`.
        indices: int64; below 0 counts backwards from the stream's first output.
    Returns: 64 bits, int64 of the broadcast shape.
    """
    bits = (indices * _signed(GOLDEN_GAMMA)).add(keys)
    shifted = torch.empty_like(bits)  # one buffer for all: a fresh megabyte costs more than the arithmetic on it
    for num, factor in ((30, MIX_A), (27, MIX_B)):
        bits.bitwise_xor_(_shift(bits, num, out=shifted)).mul_(_signed(factor))
    return bits.bitwise_xor_(_shift(bits, 31, out=shifted))


def to_uniform(bits: Tensor) -> Tensor:
    """64 bits of any shape as float64 in (0, 1), never 0 nor 1: (the first 52 + 1/2) / 2**52, exactly."""
    first = _shift(bits, 64 - UNIFORM_BITS, out=torch.empty_like(bits))
    return first.to(torch.float64).add_(0.5).mul_(2.0**-UNIFORM_BITS)


def to_exponential(bits: Tensor) -> Tensor:
    """64 bits of any shape as standard exponential noise in float64: -log(1 - u), above 0 and below 37.

    Small noise, which is what wins, comes from small uniforms, where float64 is densest.
    """
    return to_uniform(bits).neg_().log1p_().neg_()


def block_noise(keys: Tensor | int, blocks: Tensor) -> BlockNoise:
    """Args: as stream_bits, with the numbers of blocks (token id // BLOCK) for indices."""
    bits = stream_bits(keys, blocks.bitwise_not())  # -1 - block
    return BlockNoise(to_exponential(bits).div_(BLOCK), bits.bitwise_and(BLOCK - 1))


def gumbel(keys: Tensor | int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of tokens, from -3.7 to 40.9.

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
    Returns: float64 of its shape, with one more dimension of BLOCK.
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
    """Read 64 bits as two's complement, int64's own reading; its sums and products wrap as unsigned ones do."""
    bits &= _MASK64
    return bits - 2**64 if bits >= 2**63 else bits


def _shift(bits: Tensor, num: int, out: Tensor) -> Tensor:
    """Logical right shift: int64's own shift drags the sign bit in, the mask takes it out."""
    return torch.bitwise_right_shift(bits, num, out=out).bitwise_and_((1 << (64 - num)) - 1)
