"""The target's draw: the next token as a pure function of logits, law, position and earlier tokens.

    logits -> adjust (min_tokens, logit bias, penalties) -> temperature -> top-k -> top-p -> min-p -> draw

Greedy takes the argmax of the adjusted logits. Otherwise the draw is the Gumbel-max trick: the token with the largest
scaled logit + Gumbel noise is distributed as the softmax of the scaled logits, and as the noise is a function of
(seed, position, token), so is the token. All of it is float64, on one row (`next_tokens`: several alike). Of equals the
lowest token id wins, always.

Ties with the k-th token stay in the top-k; top-p keeps the fewest most likely tokens whose mass reaches p (both as in
vLLM). Speed comes from leaving out what cannot win, never from approximating what can: `reference.py` says the same in
loops, and the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, inf, isfinite, log
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.speculation.adjust import adjust
from starspec.speculation.counts import TokenCounts
from starspec.speculation.law import TokenLaw
from starspec.speculation.noise import BLOCK, block_gumbel, block_noise, gumbel, stream_key

FEW_TOKENS = 4096  # to draw from, of which it is quicker to compute all noise than to look for blocks
FIRST_BLOCKS = 32  # that a draw looks into; for most laws that say one thing rather than another all that can win
BOUND_SLACK = 1e-9  # a logarithm may fall by a last bit where its argument grows
MASS_BITS = 40  # top-p counts mass in units of 2**-40 of the likeliest token's: integers, whose sums have no order
BINS_PER_UNIT = 64  # and looks for its edge in bins of 1/64 of a scaled logit,
NUM_BINS = 2048  # of which the last takes all below -32, whose mass rounds to 0

MAX_ROWS_AT_ONCE = 64  # of a vocabulary of 150,000 a float64 tensor takes 80 MB then; about six live at once


class Support(NamedTuple):
    """The tokens that may be drawn, ids ascending."""

    token_ids: Tensor  # [S] int64
    scaled: Tensor  # [S] float64: (logit - largest logit) / temperature, so 0 for the likeliest token

    def at(self, index: Tensor) -> Support:
        """The part of it at these places, [S'] int64, ascending."""
        return Support(self.token_ids.index_select(0, index), self.scaled.index_select(0, index))

    def down_to(self, floor: float) -> Support:
        """The part of it with scaled logits of at least `floor`."""
        return self.at((self.scaled >= floor).nonzero().squeeze(1))


def next_token(logits: Tensor, law: TokenLaw, position: int, counts: TokenCounts | None = None) -> int:
    """Draw the token at `position`.

    Args:
        logits: [V], the model's own, any float dtype and device; not changed.
        position: absolute index of the token to be drawn; the prompt's first token has index 0.
        counts: of all tokens before `position`; None will do if the law has neither penalties nor min_tokens.
    Returns: a token id. If the largest logit is infinite or NaN, so that there are no probabilities: the argmax.
    Raises: ValueError if the law needs counts and there are none.
    """
    adjusted = adjust(logits, law, position, counts) if law.adjusts_logits else logits
    if law.is_greedy or not isfinite(largest := float(adjusted.max())):
        return int(adjusted.to(torch.float64).argmax())
    scale = _Scale(largest, law.temperature, log(law.min_p) if law.min_p else -inf)
    if law.top_k == 0 and law.top_p == 1.0 and len(adjusted) > FEW_TOKENS:
        return _draw_from_all(adjusted, scale, stream_key(law.seed, position))
    return draw(support(scale.of(adjusted), law), law.seed, position)


def next_tokens(logits: Tensor, laws: Sequence[TokenLaw], positions: Sequence[int]) -> list[int]:
    """next_token of several rows at once, with exact noise for every token of each.

    Where launching a kernel costs more than what it computes that is quicker than one row after the other.

    Args:
        logits: [B, V]; not changed.
        laws: B, with a temperature, that neither adjust logits nor have a top-k or top-p.
        positions: B.
    """
    blocks = torch.arange(-(-logits.shape[1] // BLOCK), device=logits.device)
    drawn = list[int]()
    for first in range(0, len(laws), MAX_ROWS_AT_ONCE):
        rows = slice(first, first + MAX_ROWS_AT_ONCE)
        values = logits[rows].to(torch.float64)
        keys = [stream_key(law.seed, position) for law, position in zip(laws[rows], positions[rows], strict=True)]
        columns = torch.tensor(keys, device=logits.device).unsqueeze(1)
        noise = block_gumbel(block_noise(columns, blocks), columns, blocks).flatten(1)
        told = [(law.temperature, log(law.min_p) if law.min_p else -inf) for law in laws[rows]]
        temperatures, floors = torch.tensor(told, dtype=torch.float64, device=logits.device).unsqueeze(2).unbind(1)
        largest = values.amax(-1, keepdim=True)
        scaled = values.sub(largest).div_(temperatures)
        perturbed = noise[:, : logits.shape[1]].add(scaled).masked_fill_(scaled < floors, -inf)
        drawn += torch.where(largest.isfinite(), perturbed, values).argmax(-1).tolist()
    return drawn


def support(scaled: Tensor, law: TokenLaw) -> Support:
    """Keep the tokens that top-k, top-p and min-p leave, in this order.

    Args:
        scaled: [V] float64, the largest value 0.
    """
    tokens = Support(torch.arange(len(scaled), device=scaled.device), scaled)
    if 0 < law.top_k < len(scaled):
        tokens = tokens.down_to(float(scaled.topk(law.top_k).values[-1]))
    if law.top_p < 1.0:
        tokens = _top_p(tokens, law.top_p)
    if law.min_p > 0.0:
        tokens = tokens.down_to(log(law.min_p))
    return tokens


def draw(tokens: Support, seed: int, position: int) -> int:
    """The token with the largest scaled logit + Gumbel noise."""
    key = stream_key(seed, position)
    if len(tokens.token_ids) <= FEW_TOKENS:
        return int(tokens.token_ids[gumbel(key, tokens.token_ids).add_(tokens.scaled).argmax()])
    scaled = tokens.scaled.new_full((int(tokens.token_ids[-1]) + 1,), -inf)
    return _draw_from_all(scaled.index_copy_(0, tokens.token_ids, tokens.scaled), _Scale(), key)


class _Scale(NamedTuple):
    """How logits become scaled ones."""

    largest: float = 0.0
    temperature: float = 1.0
    floor: float = -inf  # scaled logits below it rule a token out

    def of(self, logits: Tensor) -> Tensor:
        return logits.to(torch.float64).sub(self.largest).div_(self.temperature)


def _draw_from_all(logits: Tensor, scale: _Scale, key: int) -> int:
    """`draw` from a whole vocabulary [V], of any float dtype.

    No token of a block has a larger logit than the block's largest, nor more noise than its least exponential gives.
    So of nearly all blocks two numbers tell that none of their tokens can win, and the rest of noise is computed for
    the few that are left.
    """
    values = _in_blocks(logits)
    blocks = torch.arange(len(values), device=values.device)
    tops = scale.of((values.float() if values.dtype.itemsize < 4 else values).amax(1))  # float32 is quicker, and exact
    shared = block_noise(key, blocks)
    bounds = tops.sub(shared.least.log())

    def best_of(chosen: Tensor) -> tuple[int, float]:
        scaled = scale.of(values.index_select(0, chosen))
        perturbed = block_gumbel(shared.at(chosen), key, chosen).add_(scaled).masked_fill_(scaled < scale.floor, -inf)
        best = int(perturbed.argmax())
        return int(chosen[best // BLOCK]) * BLOCK + best % BLOCK, float(perturbed.view(-1)[best])

    likely = bounds.topk(min(FIRST_BLOCKS, len(bounds)))
    token_id, to_beat = best_of(likely.indices.sort().values)
    if float(likely.values[-1]) < to_beat - BOUND_SLACK:
        return token_id
    return best_of((bounds >= to_beat - BOUND_SLACK).nonzero().squeeze(1))[0]


def _in_blocks(logits: Tensor) -> Tensor:
    """[V] as [blocks, BLOCK]; what the last one lacks is -inf."""
    missing = -len(logits) % BLOCK
    return (F.pad(logits, (0, missing), value=-inf) if missing else logits).view(-1, BLOCK)


def _top_p(tokens: Support, top_p: float) -> Support:
    """The fewest most likely tokens whose mass reaches `top_p`; of equals the lowest ids.

    A histogram over scaled logits tells in which bin the mass reaches it. All bins before that one stay, and only
    its own tokens are sorted.
    """
    mass = _mass(tokens.scaled)
    bins = tokens.scaled.to(torch.float32).mul_(-BINS_PER_UNIT).clamp_(max=NUM_BINS - 1).to(torch.int32)
    cumulative = mass.new_zeros(NUM_BINS).index_add_(0, bins, mass).cumsum(0)
    needed = ceil(Fraction(top_p) * int(cumulative[-1]))
    last = int(torch.searchsorted(cumulative, needed))
    needed_of_last = needed - int(cumulative[last - 1]) if last else needed
    inside = (bins == last).nonzero().squeeze(1)
    inside = inside[tokens.scaled[inside].sort(descending=True, stable=True).indices]
    num_kept = int(torch.searchsorted(mass[inside].cumsum(0), needed_of_last)) + 1
    keep = bins < last
    keep[inside[:num_kept]] = True
    return tokens.at(keep.nonzero().squeeze(1))


def _mass(scaled: Tensor) -> Tensor:
    """exp(scaled) in units of 2**-MASS_BITS, rounded to the nearest: int64, at most 2**MASS_BITS for each.

    At the offset, float64 has exactly this resolution: the addition rounds, and the difference of the bit
    patterns is the number of units.
    """
    offset = torch.tensor(2.0 ** (52 - MASS_BITS), dtype=torch.float64, device=scaled.device)
    return scaled.exp().add_(offset).view(torch.int64) - offset.view(torch.int64)
