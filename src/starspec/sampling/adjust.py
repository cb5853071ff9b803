"""What a request changes in the model's logits: grammar, min_tokens, bad words, logit bias and penalties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from starspec.sampling.counts import TokenCounts
from starspec.sampling.spec import SamplingSpec

NUM_KEPT: Final = 256  # lists of token ids, as tensors: those of so many requests at once are made once each


def adjust(
    logits: Tensor,
    sampling: SamplingSpec,
    position: int,
    counts: TokenCounts | None,
    allowed: Tensor | None = None,
) -> Tensor:
    """Apply a request's grammar, min_tokens, bad words, logit bias and penalties to the logits of one position.

    Where the grammar allows nothing but end tokens, the answer may end before `min_tokens`. Where it allows nothing but
    the ends of bad words, no token is left: all logits are -inf.

    Token ids outside the vocabulary have no effect, because a draft's vocabulary may be smaller than the target's.

    Args:
        logits: [V], any float dtype and device; not changed.
        sampling: the request's sampling parameters.
        position: absolute index of the token to be drawn.
        counts: of all tokens before `position`; None is allowed if `sampling.needs_counts` is false.
        allowed: bool [V], what the grammar allows, as of a Constraint; None = all tokens.
    Returns: float64 [V] on the same device. It shares memory with `logits` if nothing changes and the dtype is float64.
    Raises: ValueError if `sampling` needs counts and `counts` is None.
    """
    if allowed is None and not sampling.adjusts_logits:
        return logits.to(torch.float64)
    adjusted = logits.to(torch.float64, copy=True)
    if sampling.min_tokens and position - _known(counts).prompt_len < sampling.min_tokens:
        allowed = _without_ends(adjusted, sampling.end_token_ids, allowed)
    if allowed is not None:
        adjusted.masked_fill_(~allowed.to(adjusted.device), -torch.inf)
    if sampling.bad_words:
        adjusted[_indices(sampling.ends_of_bad_words(_known(counts).last_output), adjusted)] = -torch.inf
    if sampling.logit_bias:
        _add_bias_(adjusted, sampling.logit_bias)
    if sampling.has_penalties:
        _penalize_(adjusted, sampling, _known(counts))
    return adjusted


def _without_ends(adjusted: Tensor, end_token_ids: Iterable[int], allowed: Tensor | None) -> Tensor:
    """The allowed tokens without the end tokens, unless only these are allowed."""
    some = torch.ones_like(adjusted, dtype=torch.bool) if allowed is None else allowed.to(adjusted.device, copy=True)
    some[_end_tensor(tuple(end_token_ids), len(adjusted), adjusted.device)] = False
    return some if allowed is None or bool(some.any()) else allowed


def _add_bias_(adjusted: Tensor, logit_bias: Mapping[int, float]) -> None:
    token_ids, biases = _bias_tensors(tuple(logit_bias.items()), len(adjusted), adjusted.device)
    adjusted[token_ids] += biases


@lru_cache(maxsize=NUM_KEPT)
def _bias_tensors(
    logit_bias: tuple[tuple[int, float], ...], vocab_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The token ids and the biases of those that the vocabulary has. A request has the same at each position."""
    inside = {token_id: bias for token_id, bias in logit_bias if 0 <= token_id < vocab_size}
    return _int_tensor(inside, device), torch.tensor([*inside.values()], dtype=torch.float64, device=device)


@lru_cache(maxsize=NUM_KEPT)
def _end_tensor(end_token_ids: tuple[int, ...], vocab_size: int, device: torch.device) -> Tensor:
    """As `_bias_tensors`, of end tokens."""
    return _int_tensor([token_id for token_id in end_token_ids if 0 <= token_id < vocab_size], device)


def _int_tensor(token_ids: Iterable[int], device: torch.device) -> Tensor:
    return torch.tensor([*token_ids], dtype=torch.int64, device=device)


def _penalize_(adjusted: Tensor, sampling: SamplingSpec, counts: TokenCounts) -> None:
    """Apply the repetition penalty over prompt and output, then frequency and presence penalties over the output."""
    seen = counts.seen()
    inside = (seen.token_ids >= 0) & (seen.token_ids < len(adjusted))
    token_ids = seen.token_ids[inside].to(adjusted.device)
    num_output = seen.num_output[inside].to(adjusted.device)
    values = adjusted[token_ids]
    values = torch.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    values -= sampling.frequency_penalty * num_output
    values -= sampling.presence_penalty * num_output.clamp(max=1.0)
    adjusted[token_ids] = values


def _indices(token_ids: Iterable[int], adjusted: Tensor) -> Tensor:
    """The given ids that the vocabulary has, as an int64 tensor on the device of `adjusted`."""
    return _int_tensor([token_id for token_id in token_ids if 0 <= token_id < len(adjusted)], adjusted.device)


def _known(counts: TokenCounts | None) -> TokenCounts:
    if counts is None:
        raise ValueError("these sampling parameters depend on earlier tokens: pass the counts of those tokens")
    return counts
