"""Which slots a new token attends to: the committed prefix, its ancestors and itself.

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
    """Whether every token is the child of the token before it."""
    return parents is None or all(parent == node - 1 for node, parent in enumerate(parents))


def depths_of(num_tokens: int, parents: Sequence[int] | None) -> list[int]:
    """Depth of each new token below the prefix; 0 for a token whose parent is the prefix.

    Raises: ValueError unless there is one parent for each token, in topological order.
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
    """The attention mask of one segment: bool [T, prefix_len + T], True where a token may attend. On the CPU."""
    visible = torch.ones(num_tokens, prefix_len + num_tokens, dtype=torch.bool)
    if parents is None or is_chain(parents):
        return visible.tril_(prefix_len)
    new = visible.numpy()[:, prefix_len:]  # shares memory; numpy indexes rows ten times faster than torch
    new[:] = False
    for node, parent in enumerate(parents):
        if parent >= 0:
            new[node] = new[parent]
        new[node, node] = True
    return visible
