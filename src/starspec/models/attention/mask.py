"""Which slots a new token sees: the committed prefix, its ancestors, itself.

parents = (-1, 0, 0, 1)     prefix of 2      tokens 0..3        depths = 0, 1, 1, 2

    0 ── 1 ── 3                  1 1         1 . . .
    └─── 2                       1 1         1 1 . .
                                 1 1         1 . 1 .
                                 1 1         1 1 . 1
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_chain(parents: Sequence[int] | None) -> bool:
    """Whether every token hangs from the one before it."""
    return parents is None or all(parent == node - 1 for node, parent in enumerate(parents))


def depths_of(num_tokens: int, parents: Sequence[int] | None) -> list[int]:
    """Depth of each new token below the prefix; 0 for a token that hangs from the prefix itself.

    Raises: ValueError if the parents are not T entries in topological order.
    """
    if parents is None:
        return list(range(num_tokens))
    if len(parents) != num_tokens:
        raise ValueError(f"{num_tokens} tokens but {len(parents)} parents")
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"token {node} has parent {parent}: parents must come first")
        depths.append(0 if parent == -1 else depths[parent] + 1)
    return depths


def visible_slots(prefix_len: int, num_tokens: int, parents: Sequence[int] | None) -> Tensor:
    """The mask of one segment: bool [T, prefix_len + T], True where a token may look. On the CPU."""
    visible = torch.ones(num_tokens, prefix_len + num_tokens, dtype=torch.bool)
    if parents is None or is_chain(parents):
        return visible.tril_(prefix_len)
    new = visible.numpy()[:, prefix_len:]  # shares memory; numpy because it indexes rows ten times faster
    new[:] = False
    for node, parent in enumerate(parents):
        if parent >= 0:
            new[node] = new[parent]
        new[node, node] = True
    return visible
