"""Proposals for coupled verification: predict the target's draw with the target's own rule, over the likeliest tokens.

The target takes the token with the largest scaled logit + noise (`sampling/draw.py`), and the noise is known. Unknown
is how far its logits differ from the draft's. If each differs by Gumbel noise of scale 1, the target's draw is
distributed as the softmax of the draft's perturbed logits. Without temperature this is EAGLE-2's confidence, the
softmax of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final

import torch
from torch import Tensor

from starspec.sampling.adjust import adjust
from starspec.sampling.counts import TokenCounts
from starspec.sampling.draw import draw
from starspec.sampling.filters import Support, support
from starspec.sampling.noise import gumbel, stream_key
from starspec.sampling.spec import SamplingSpec

NUM_CANDIDATES: Final = 64
RULED_OUT: Final = 1.0  # logits subtracted from a guess that the sampling parameters exclude
TIE_BREAK: Final = 1e-6  # logits by which the likeliest guess is put ahead
HOTTEST: Final = 1e6  # temperature

Proposed = tuple[int, float]
"""A token id, and the log-probability that the target draws it."""


def propose_token(
    logits: Tensor,
    sampling: SamplingSpec,
    position: int,
    counts: TokenCounts | None = None,
    num_candidates: int = NUM_CANDIDATES,
) -> int:
    """Predict what a target with similar logits draws at `position`.

    Args:
        logits, sampling, position, counts: as for `next_token`.
        num_candidates: at least 1; only this many of the likeliest tokens are considered.
    Returns, raises: as `next_token`.
    """
    adjusted = adjust(logits, sampling, position, counts)
    if sampling.is_greedy or not isfinite(largest := float(adjusted.max())):
        return int(adjusted.argmax())
    candidates = likely_support(adjusted, largest, sampling, num_candidates)
    return draw(candidates, sampling.seed, position)


def propose_tokens(
    logits: Tensor,
    sampling: SamplingSpec,
    position: int,
    counts: Sequence[TokenCounts | None],
    *,
    num_tokens: int,
    num_candidates: int = NUM_CANDIDATES,
) -> list[list[Proposed]]:
    """The likeliest draws of a target with similar logits, after each of several nodes of one depth.

    Args:
        logits: [B, V], any float dtype and device; not changed.
        sampling: the request's sampling parameters.
        position: absolute index of the token to be drawn, the same for all nodes.
        counts: B; of all tokens before `position` on the path of each node.
        num_tokens: tokens for each node, at most.
        num_candidates: only this many of the likeliest tokens are considered.
    Returns: for each row at least one and at most `num_tokens` tokens, likeliest first. The first is `propose_token`'s.
    Raises: as `next_token`.
    """
    if sampling.temperature > HOTTEST:  # almost uniform: floats cannot tell the candidates apart
        return [
            [(propose_token(row, sampling, position, seen, num_candidates), 0.0)]
            for row, seen in zip(logits, counts, strict=True)
        ]
    adjusted = _adjusted(logits, sampling, position, counts)
    values, token_ids = _candidates(adjusted, max(num_tokens, num_candidates))
    if sampling.is_greedy:
        log_masses = adjusted.to(torch.float64).logsumexp(dim=-1, keepdim=True).cpu()
    else:
        values = _perturbed(values, token_ids, sampling, position)
        log_masses = values.logsumexp(dim=-1, keepdim=True)
    order = values.sort(dim=-1, descending=True, stable=True).indices[:, :num_tokens]
    found = zip(token_ids.gather(-1, order).tolist(), (values - log_masses).gather(-1, order).tolist(), strict=True)
    return [
        [each for each in zip(*pairs, strict=True) if isfinite(each[1])] or [(int(row.argmax()), 0.0)]
        for pairs, row in zip(found, adjusted, strict=True)
    ]


def likely_support(adjusted: Tensor, largest: float, sampling: SamplingSpec, num_candidates: int) -> Support:
    """The support among the `num_candidates` likeliest tokens."""
    candidates = adjusted.topk(min(num_candidates, len(adjusted))).indices.sort().values
    within = support(adjusted[candidates].sub_(largest).div_(sampling.temperature), sampling)
    return Support(candidates[within.token_ids], within.scaled)


def _adjusted(logits: Tensor, sampling: SamplingSpec, position: int, counts: Sequence[TokenCounts | None]) -> Tensor:
    """[B, V]: the logits that tokens are drawn from; the given logits themselves if nothing changes them."""
    if not sampling.adjusts_logits:
        return logits
    return torch.stack([adjust(row, sampling, position, seen) for row, seen in zip(logits, counts, strict=True)])


def _candidates(adjusted: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The `num` largest of each row of [B, V]: values [B, C] float64 and token ids [B, C], ids ascending.

    Both are on the CPU, which has finished with so few numbers before an accelerator has launched its first kernel.
    """
    top = adjusted.topk(min(num, adjusted.shape[-1]), dim=-1)
    token_ids, order = top.indices.cpu().sort(dim=-1)
    return top.values.cpu().to(torch.float64).gather(-1, order), token_ids


def _perturbed(values: Tensor, token_ids: Tensor, sampling: SamplingSpec, position: int) -> Tensor:
    """Logits + temperature * noise [B, C], relative to the row's largest logit; -inf for excluded tokens."""
    scaled = values.sub(values.amax(dim=-1, keepdim=True)).div_(sampling.temperature)
    perturbed = gumbel(stream_key(sampling.seed, position), token_ids).add_(scaled).mul_(sampling.temperature)
    if not sampling.has_filters:
        return perturbed
    # The target's logits differ, so it may keep a token that is excluded here: less likely, not impossible.
    inside = torch.stack([_inside(row, sampling) for row in scaled])
    best = perturbed.masked_fill(~inside, -torch.inf).argmax(dim=-1, keepdim=True)
    perturbed = torch.where(inside, perturbed, perturbed - RULED_OUT)
    return perturbed.scatter_(-1, best, perturbed.amax(dim=-1, keepdim=True) + TIE_BREAK)


def _inside(scaled: Tensor, sampling: SamplingSpec) -> Tensor:
    """Which candidates [C] top-k, top-p and min-p keep."""
    inside = torch.zeros_like(scaled, dtype=torch.bool)
    known = scaled.isfinite().nonzero().squeeze(1)
    if len(known):
        inside[known[support(scaled[known], sampling).token_ids]] = True
    return inside
