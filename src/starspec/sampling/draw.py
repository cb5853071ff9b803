"""The target's draw: the next token as a pure function of logits, sampling parameters, position and earlier tokens.

    logits -> adjust (grammar, min_tokens, bad words, logit bias, penalties)
           -> temperature -> top-k -> top-p -> min-p -> draw

Greedy decoding takes the argmax of the adjusted logits. Otherwise the draw uses the Gumbel-max trick: the token with
the largest scaled logit + Gumbel noise is distributed as the softmax of the scaled logits. The noise is a function of
(seed, position, token), and so is the drawn token. All arithmetic is float64 on one row; `next_tokens` does several
similar rows at once. Among equal values the lowest token id always wins.

The code is fast because it skips tokens that cannot win; it never approximates those that can. `reference.py` computes
the same in plain loops, and the tests compare both.
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

FEW_TOKENS = 4096  # up to this many tokens, computing all noise is faster than searching for blocks that can win

# for a vocabulary of 150,000 one float64 tensor then takes 80 MB, and about six are alive at once
MAX_ROWS_AT_ONCE = 64


def next_token(
    logits: Tensor,
    sampling: SamplingSpec,
    position: int,
    counts: TokenCounts | None = None,
    allowed: Tensor | None = None,
) -> int:
    """Draw the token at `position`.

    Args:
        logits: [V], the model's own, any float dtype and device; not changed.
        sampling: the request's sampling parameters.
        position: absolute index of the token to be drawn; the prompt's first token has index 0.
        counts: of all tokens before `position`; None is allowed if `sampling.needs_counts` is false.
        allowed: as for `adjust`.
    Returns: a token id. If the largest logit is infinite or NaN there are no probabilities, and the argmax is returned.
    Raises: ValueError if `sampling` needs counts and `counts` is None.
    """
    adjusted = logits
    if sampling.adjusts_logits or allowed is not None:
        adjusted = adjust(logits, sampling, position, counts, allowed)
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
    """`next_token` for several rows at once. It computes the exact noise of every token of every row.

    This is faster than one row after the other where a kernel launch costs more than the kernel's arithmetic.

    Args:
        logits: [B, V]; not changed.
        samplings: B sampling parameters with a temperature above 0 that neither adjust logits nor have top-k or top-p.
        positions: B absolute indices.
    Returns: B token ids.
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
        given = [(sampling.temperature, sampling.floor) for sampling in samplings[rows]]
        temperatures, floors = torch.tensor(given, dtype=torch.float64, device=logits.device).unsqueeze(2).unbind(1)
        largest = values.amax(-1, keepdim=True)
        scaled = values.sub(largest).div_(temperatures)
        perturbed = noise[:, : logits.shape[1]].add(scaled).masked_fill_(scaled < floors, -inf)
        drawn += torch.where(largest.isfinite(), perturbed, values).argmax(-1).tolist()
    return drawn


def draw(tokens: Support, seed: int, position: int) -> int:
    """The token with the largest scaled logit + Gumbel noise.

    Args:
        tokens: the tokens that may be drawn.
        seed: the request's.
        position: absolute index of the token to be drawn.
    """
    key = stream_key(seed, position)
    if len(tokens.token_ids) <= FEW_TOKENS:
        return int(tokens.token_ids[gumbel(key, tokens.token_ids).add_(tokens.scaled).argmax()])
    scaled = tokens.scaled.new_full((int(tokens.token_ids[-1]) + 1,), -inf)
    return LogitBlocks(scaled.index_copy_(0, tokens.token_ids, tokens.scaled)).draw(key)


def _support(blocks: LogitBlocks, sampling: SamplingSpec) -> Support:
    """`support` for a large vocabulary and sampling parameters with top-k or top-p."""
    likely = blocks.top_k(sampling.top_k) if sampling.top_k else blocks.nucleus(sampling.top_p)
    if likely is None:
        return support(blocks.all(), sampling)
    return filtered(likely, sampling if sampling.top_k else replace(sampling, top_p=1.0))
