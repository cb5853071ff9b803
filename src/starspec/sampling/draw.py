"""The target's draw: the next token as a pure function of logits, law, position and earlier tokens.

    logits -> adjust (min_tokens, logit bias, penalties) -> temperature -> top-k -> top-p -> min-p -> draw

Greedy takes the argmax of the adjusted logits. Otherwise the draw is the Gumbel-max trick: the token with the largest
scaled logit + Gumbel noise is distributed as the softmax of the scaled logits, and as the noise is a function of
(seed, position, token), so is the token. All of it is float64, on one row (`next_tokens`: several alike). Of equals the
lowest token id wins, always.

Speed comes from leaving out what cannot win, never from approximating what can: `reference.py` says the same in
loops, and the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

import torch
from torch import Tensor

from starspec.sampling.adjust import adjust
from starspec.sampling.counts import TokenCounts
from starspec.sampling.filters import Support, filtered, support
from starspec.sampling.logit_blocks import LogitBlocks
from starspec.sampling.noise import BLOCK, block_gumbel, block_noise, gumbel, stream_key
from starspec.sampling.spec import SamplingSpec

FEW_TOKENS = 4096  # to draw from, of which it is quicker to compute all noise than to look for blocks

MAX_ROWS_AT_ONCE = 64  # of a vocabulary of 150,000 a float64 tensor takes 80 MB then; about six live at once


def next_token(logits: Tensor, sampling: SamplingSpec, position: int, counts: TokenCounts | None = None) -> int:
    """Draw the token at `position`.

    Args:
        logits: [V], the model's own, any float dtype and device; not changed.
        position: absolute index of the token to be drawn; the prompt's first token has index 0.
        counts: of all tokens before `position`; None will do if the law has neither penalties nor min_tokens.
    Returns: a token id. If the largest logit is infinite or NaN, so that there are no probabilities: the argmax.
    Raises: ValueError if the law needs counts and there are none.
    """
    adjusted = adjust(logits, sampling, position, counts) if sampling.adjusts_logits else logits
    if sampling.is_greedy or not isfinite(largest := float(adjusted.max())):
        return int(adjusted.to(torch.float64).argmax())
    if len(adjusted) <= FEW_TOKENS:
        return draw(
            support(adjusted.to(torch.float64).sub(largest).div_(sampling.temperature), sampling),
            sampling.seed,
            position,
        )
    blocks = LogitBlocks(adjusted, largest, sampling.temperature)
    if sampling.top_k == 0 and sampling.top_p == 1.0:
        return blocks.draw(stream_key(sampling.seed, position), sampling.floor)
    return draw(_support(blocks, sampling), sampling.seed, position)


def next_tokens(logits: Tensor, samplings: Sequence[SamplingSpec], positions: Sequence[int]) -> list[int]:
    """next_token of several rows at once, with exact noise for every token of each.

    Where launching a kernel costs more than what it computes that is quicker than one row after the other.

    Args:
        logits: [B, V]; not changed.
        laws: B, with a temperature, that neither adjust logits nor have a top-k or top-p.
        positions: B.
    """
    blocks = torch.arange(-(-logits.shape[1] // BLOCK), device=logits.device)
    drawn = list[int]()
    for first in range(0, len(samplings), MAX_ROWS_AT_ONCE):
        rows = slice(first, first + MAX_ROWS_AT_ONCE)
        values = logits[rows].to(torch.float64)
        keys = [
            stream_key(sampling.seed, position)
            for sampling, position in zip(samplings[rows], positions[rows], strict=True)
        ]
        columns = torch.tensor(keys, device=logits.device).unsqueeze(1)
        noise = block_gumbel(block_noise(columns, blocks), columns, blocks).flatten(1)
        told = [(sampling.temperature, sampling.floor) for sampling in samplings[rows]]
        temperatures, floors = torch.tensor(told, dtype=torch.float64, device=logits.device).unsqueeze(2).unbind(1)
        largest = values.amax(-1, keepdim=True)
        scaled = values.sub(largest).div_(temperatures)
        perturbed = noise[:, : logits.shape[1]].add(scaled).masked_fill_(scaled < floors, -inf)
        drawn += torch.where(largest.isfinite(), perturbed, values).argmax(-1).tolist()
    return drawn


def draw(tokens: Support, seed: int, position: int) -> int:
    """The token with the largest scaled logit + Gumbel noise."""
    key = stream_key(seed, position)
    if len(tokens.token_ids) <= FEW_TOKENS:
        return int(tokens.token_ids[gumbel(key, tokens.token_ids).add_(tokens.scaled).argmax()])
    scaled = tokens.scaled.new_full((int(tokens.token_ids[-1]) + 1,), -inf)
    return LogitBlocks(scaled.index_copy_(0, tokens.token_ids, tokens.scaled)).draw(key)


def _support(blocks: LogitBlocks, sampling: SamplingSpec) -> Support:
    """`support` of a large vocabulary, for a law with top-k or top-p."""
    likely = blocks.top_k(sampling.top_k) if sampling.top_k else blocks.nucleus(sampling.top_p)
    if likely is None:
        return support(blocks.all(), sampling)
    return filtered(likely, sampling if sampling.top_k else replace(sampling, top_p=1.0))
