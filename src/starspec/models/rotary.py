"""Rotary position embedding over all heads of a forward at once."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from starspec.errors import ModelError

BATCH_DEPENDENT: Final = ("dynamic", "longrope")  # frequencies that follow the longest position of the batch


class Rotation:
    """Rotary embedding of one forward, over every head of the fused linear at once; values turn by 0.

    The halves of D are the coordinates of a pair, as transformers lays them out:

        low'  = low cos - high sin
        high' = high cos + low sin

    Args:
        cos, sin: [R, Hq + 2 H, D].
        num_queries: Hq.
    """

    def __init__(self, cos: Tensor, sin: Tensor, num_queries: int) -> None:
        num_tokens, num_heads, head_dim = cos.shape
        self._cos = cos
        self._sin_low, self._sin_high = sin.chunk(2, dim=-1)
        self._out = torch.empty_like(cos)
        self._out_low, self._out_high = self._out.chunk(2, dim=-1)
        self.queries = self._out[:, :num_queries]  # [R, Hq, D] of what was turned last
        self.keys_values = self._out[:, num_queries:].view(num_tokens, 2, (num_heads - num_queries) // 2, head_dim)

    def turn(self, x: Tensor) -> None:
        """Effects: `queries` and `keys_values` are those of x [R, Hq + 2 H, D], turned."""
        low, high = x.chunk(2, dim=-1)
        torch.mul(x, self._cos, out=self._out)
        self._out_low.addcmul_(high, self._sin_low, value=-1)
        self._out_high.addcmul_(low, self._sin_high)


def rotary_table(rotary: Any, num_positions: int, dtype: torch.dtype) -> Tensor:
    """[2, num_positions, D]: cosines and sines of the model's own rotary module."""
    positions = torch.arange(num_positions, device=rotary.inv_freq.device)
    like = torch.empty(0, dtype=dtype, device=positions.device)
    return torch.stack(rotary(like, positions.unsqueeze(0))).squeeze(1)


def check_rotary(config: PreTrainedConfig) -> None:
    """Raises: ModelError if rotary frequencies depend on the longest position in the batch."""
    parameters = getattr(config.get_text_config(decoder=True), "rope_parameters", None) or {}
    kind = parameters.get("rope_type", "default")
    if kind in BATCH_DEPENDENT:
        raise ModelError(f"rotary type '{kind}' makes a sequence depend on its batch, so starspec does not support it")
