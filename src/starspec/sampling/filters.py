"""The tokens that top-k, then top-p, then min-p leave of a row of logits (its support).

Tokens that tie with the k-th one stay in the top-k. Top-p keeps the fewest most likely tokens whose mass reaches p.
Both are as in vLLM.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from starspec.sampling.spec import SamplingSpec

# top-p counts mass in integer units of 2**-40 of the likeliest token's mass: integer sums do not depend on order
MASS_BITS = 40
BINS_PER_UNIT = 64  # top-p looks for its edge in histogram bins of 1/64 of a scaled logit
NUM_BINS = 2048  # the last bin takes all scaled logits below -32, whose mass rounds to 0


class Support(NamedTuple):
    """The tokens that may be drawn, in ascending order of their ids."""

    token_ids: Tensor  # [S] int64
    scaled: Tensor  # [S] float64: (logit - largest logit) / temperature, so 0 for the likeliest token

    def at(self, index: Tensor) -> Support:
        """The tokens at these indices, [S'] int64, ascending."""
        return Support(self.token_ids.index_select(0, index), self.scaled.index_select(0, index))

    def down_to(self, floor: float) -> Support:
        """The tokens with scaled logits of at least `floor`."""
        return self.at((self.scaled >= floor).nonzero().squeeze(1))


def support(scaled: Tensor, sampling: SamplingSpec) -> Support:
    """Keep the tokens that top-k, top-p and min-p leave, applied in this order.

    Args:
        scaled: [V] float64, the largest value 0.
        sampling: the request's sampling parameters.
    """
    return filtered(Support(torch.arange(len(scaled), device=scaled.device), scaled), sampling)


def filtered(tokens: Support, sampling: SamplingSpec) -> Support:
    """`support` if all tokens that could be kept are already known: `tokens` holds them."""
    if 0 < sampling.top_k < len(tokens.scaled):
        tokens = tokens.down_to(float(tokens.scaled.topk(sampling.top_k).values[-1]))
    if sampling.top_p < 1.0:
        tokens = _top_p(tokens, sampling.top_p)
    if sampling.min_p > 0.0:
        tokens = tokens.down_to(sampling.floor)
    return tokens


def _top_p(tokens: Support, top_p: float) -> Support:
    """Keep the fewest most likely tokens whose mass reaches `top_p`; of equally likely ones the lowest ids.

    A histogram over scaled logits shows in which bin the mass reaches `top_p`. All bins before it are kept whole, so
    only the tokens of that bin need sorting.
    """
    mass = mass_of(tokens.scaled)
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


def mass_of(scaled: Tensor) -> Tensor:
    """exp(scaled) in units of 2**-MASS_BITS, rounded to the nearest: int64, at most 2**MASS_BITS each.

    Around the offset, float64 has exactly this resolution. So the addition rounds, and the difference of the bit
    patterns is the number of units.
    """
    offset = torch.tensor(2.0 ** (52 - MASS_BITS), dtype=torch.float64, device=scaled.device)
    return scaled.exp().add_(offset).view(torch.int64) - offset.view(torch.int64)
