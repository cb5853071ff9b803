"""Values and queries whose attention shows in which order it is summed: what the probes at load attend to.

Outputs are rounded to the model's dtype, so two kernels that sum in another order mostly agree all the same: of random
values 1 output in 30,000 differed in bfloat16. Here large values add up behind a prefix, and the first token of the
chain that follows takes them all away, so that what is left is mostly rounding: 1 in 50.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

TINY: Final = 2.0**-9  # beside other values: about a rounding step of bfloat16


class SensitiveValues:
    """Values [H, S, D] of a prefix of any length, and those of a chain behind it.

    Args:
        shape: H, S, D.
        dtype: of the cache: values are those that it can hold, so that their sum is what the cache's is.
    """

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
        # cubed: a few entries dominate
        self.of_prefix = torch.randn(shape, generator=generator).pow(3).to(dtype).double()
        self._sums = self.of_prefix.cumsum(1)

    def of_chain(self, prefix_len: int, num_tokens: int) -> Tensor:
        """[H, T, D] of a chain of `num_tokens`, behind the first `prefix_len` >= 1 of the prefix's."""
        values = self.of_prefix[:, prefix_len : prefix_len + num_tokens] * TINY
        values[:, 0] = -self._sums[:, prefix_len - 1]
        return values


def half_uniform(query: Tensor) -> Tensor:
    """[T, Hq, D], with every other query 0: it sees all slots alike, for weights would spoil what values are for.

    For the others the weights make another random sum.
    """
    num_tokens, num_heads, _ = query.shape
    is_blind = (torch.arange(num_tokens)[:, None] + torch.arange(num_heads)) % 2 == 0
    return query.masked_fill(is_blind[..., None], 0.0)
