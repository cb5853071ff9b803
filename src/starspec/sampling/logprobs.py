"""Log-probabilities for clients: the model's own, before any sampling parameter applies (vLLM's `raw_logprobs`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LikelyTokens = list[tuple[int, float]]
"""(token id, log-probability), most likely first, lowest id among equals."""


class TopLogprobs(NamedTuple):
    """The log-probability of an emitted token and the most likely tokens at its position."""

    logprob: float
    top: LikelyTokens


class Score(NamedTuple):
    """How likely the model found one token of a prompt."""

    logprob: float
    rank: int  # 1 + the number of likelier tokens
    top: LikelyTokens


def scores(logits: Tensor, token_ids: Sequence[int], num_top: int) -> list[Score]:
    """Log-softmax of each row, at the token that follows in the prompt and at the `num_top` largest.

    Args:
        logits: [T, V], any float dtype and device.
        token_ids: T.
        num_top: as for `top_logprobs`.
    """
    found = []
    for row, token_id in zip(logits, token_ids, strict=True):
        logprob, top = top_logprobs(row, token_id, num_top)
        found.append(Score(logprob, 1 + int((row > row[token_id]).sum()), top))
    return found


def top_logprobs(logits: Tensor, token_id: int, num_top: int) -> TopLogprobs:
    """Log-softmax of one row, at one token and at its `num_top` largest.

    Args:
        logits: [V], any float dtype and device.
        token_id: the emitted token.
        num_top: at least 0; at most V are returned.
    """
    row = logits.to(torch.float64)
    norm = row.logsumexp(0)
    top: LikelyTokens = []
    if num_top > 0:
        floor = row.topk(min(num_top, len(row))).values[-1]
        token_ids = (row >= floor).nonzero().squeeze(1)
        order = row[token_ids].sort(descending=True, stable=True).indices[:num_top]
        token_ids = token_ids[order]
        top = list(zip(token_ids.tolist(), (row[token_ids] - norm).tolist(), strict=True))
    return TopLogprobs(float(row[token_id] - norm), top)
