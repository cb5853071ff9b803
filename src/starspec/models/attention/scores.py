"""From queries and keys to weights: scaling, and what some model families add to it.

* A **window** (Mistral, Gemma, gpt-oss, ...) is a mask. The cache keeps every position, so a rollback stays free. The
  slots that a token sees hold its ancestors in order, so its window is the last of them, wherever they lie:

      slots seen by a token   1 1 1 1 . 1 . 1        a prefix of 4, then two ancestors in a tree
      window of 3             . . . 1 . 1 . 1

* **Softcapping** (Gemma 2) and **sinks** (gpt-oss) change the softmax, which torch's fused kernels cannot do. It is
  written out for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

HIDDEN: Final = float("-inf")


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRule:
    """How one layer weighs what its tokens see."""

    scaling: float  # factor of the products of queries and keys
    window: int | None = None  # positions that a token sees, itself included; None = all before it
    softcap: float | None = None  # a score x becomes softcap * tanh(x / softcap)
    sinks: Tensor | None = None  # [Hq]: a score for each head that takes weight and gives nothing

    @property
    def is_fused(self) -> bool:
        """Whether torch's fused kernels can compute it."""
        return self.softcap is None and self.sinks is None


class Masks:
    """The mask of one call, and the narrower ones for layers with a window, each made once.

    Args:
        mask: additive [..., T, S]; None = causal over S = T slots.
        num_slots: S.
        like: has the dtype and device of the masks.
    """

    def __init__(self, mask: Tensor | None, num_slots: int, like: Tensor) -> None:
        self._mask, self._num_slots, self._like = mask, num_slots, like
        self._windowed: dict[int, Tensor] = {}

    def within(self, window: int | None) -> Tensor | None:
        """The mask for a layer with this window; None = causal."""
        if window is None or window >= self._num_slots:
            return self._mask
        if window not in self._windowed:
            mask = causal_mask(self._num_slots, self._like) if self._mask is None else self._mask
            self._windowed[window] = windowed(mask, window)
        return self._windowed[window]


def causal_mask(num_tokens: int, like: Tensor) -> Tensor:
    """Additive [T, T], with the dtype and device of `like`."""
    return torch.full((num_tokens, num_tokens), HIDDEN, dtype=like.dtype, device=like.device).triu_(1)


def windowed(mask: Tensor, window: int) -> Tensor:
    """Of the slots that each row of an additive mask [..., S] shows, hide all but the last `window`."""
    shown = mask == 0
    num_before = shown.cumsum(-1, dtype=torch.int32)
    return mask.masked_fill(num_before <= num_before[..., -1:] - window, HIDDEN)


def attended(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, rule: ScoreRule) -> Tensor:
    """Attention of N batch entries: [N, H, T, D].

    Args:
        query: [N, H, T, D].
        keys, values: [N, H, S, D].
        mask: additive, broadcast to [N, H, T, S], with the rule's window already; None = causal.
        rule: of the layer, with sinks broadcast to [N, H, T, 1].
    """
    if rule.is_fused:
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, scale=rule.scaling
        )
    if mask is None:
        mask = causal_mask(keys.shape[2], query)
    shape = query.shape[:-1]
    masks = mask.expand(*shape, -1)
    sinks = [None] * len(query) if rule.sinks is None else rule.sinks.expand(*shape, 1)
    # one entry after the other: scores take little memory, and the bits of an entry do not depend on the others
    return torch.stack([_written_out(*each, rule) for each in zip(query, keys, values, masks, sinks, strict=True)])


def _written_out(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, sinks: Tensor | None, rule: ScoreRule
) -> Tensor:
    """Attention of one batch entry, with the softmax in float32: [H, T, D]."""
    scores = (query @ keys.transpose(-1, -2)).float() * rule.scaling  # [H, T, S]
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = scores + mask
    if sinks is None:
        return scores.softmax(-1).to(values.dtype) @ values
    weights = torch.cat((scores, sinks.float()), dim=-1).softmax(-1)[..., :-1]
    return weights.to(values.dtype) @ values
