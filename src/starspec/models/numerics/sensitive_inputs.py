"""Values and queries whose attention reveals the order of summation. The probes at load attend to them.

Outputs are rounded to the model's dtype, so two kernels that sum in different orders still mostly agree: with random
values, 1 bfloat16 output in 30,000 differed. Here, large values add up over a prefix, and the first token of the chain
behind it cancels them, so that the rest is mostly rounding error: 1 output in 50 differs.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

TINY: Final = 2.0**-9  # relative to other values: about one rounding step of bfloat16


class SensitiveValues:
    """Values [H, S, D] of a prefix of any length, and those of a chain behind it.

    Args:
        shape: H, S, D.
        dtype: of the cache. Values are representable in it, so that their sum here is the sum in the cache.
        generator: of the random numbers.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
        # cubed, so that a few entries dominate
        self.of_prefix = torch.randn(shape, generator=generator).pow(3).to(dtype).double()
        self._sums = self.of_prefix.cumsum(1)

    def of_chain(self, prefix_len: int, num_tokens: int) -> Tensor:
        """[H, T, D] of a chain of `num_tokens` tokens behind the first `prefix_len` >= 1 slots of the prefix."""
        values = self.of_prefix[:, prefix_len : prefix_len + num_tokens] * TINY
        values[:, 0] = -self._sums[:, prefix_len - 1]
        return values


def half_uniform(query: Tensor) -> Tensor:
    """[T, Hq, D], with every other query 0.

    A zero query weighs all slots equally, because unequal weights would spoil the cancellation. For the other queries,
    the weights make another random sum.
    """
    num_tokens, num_heads, _ = query.shape
    is_blind = (torch.arange(num_tokens)[:, None] + torch.arange(num_heads)) % 2 == 0
    return query.masked_fill(is_blind[..., None], 0.0)
