"""The reduced vocabulary of a head, as checkpoints store it.

d2t [Vd] int64   offsets: the head's token i is the target's token i + d2t[i]
t2d [V] bool     whether the head can say a token of the target
"""

from __future__ import annotations

import torch
from torch import Tensor

from starspec.errors import ModelError


def offsets_of(token_ids: Tensor) -> Tensor:
    """`d2t` of a head whose token i is the target's `token_ids[i]`."""
    return token_ids - torch.arange(len(token_ids))


def is_said(token_ids: Tensor, vocab_size: int) -> Tensor:
    """`t2d` of a head whose tokens are the target's `token_ids`."""
    said = torch.zeros(vocab_size, dtype=torch.bool)
    said[token_ids] = True
    return said


def token_ids_of(head: str, offsets: Tensor, said: Tensor | None, vocab_size: int) -> Tensor:
    """The target's id of each token of a head, in the order of the head's tokens.

    Args:
        offsets: `d2t` as stored.
        said: `t2d` as stored, if it is.
    Raises: ModelError if an id is not the target's, comes twice, or is not what `t2d` says.
    """
    if offsets.dim() != 1 or offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise ModelError(f"'{head}' is corrupt: d2t should be a list of integers, but is {_describe(offsets)}")
    token_ids = offsets.long() + torch.arange(len(offsets))
    outside = token_ids[(token_ids < 0) | (token_ids >= vocab_size)]
    if len(outside):
        raise ModelError(f"'{head}' is corrupt: d2t leads to token {int(outside[0])} of a target with {vocab_size}")
    if not bool((token_ids.sort().values.diff() > 0).all()):
        raise ModelError(f"'{head}' is corrupt: d2t leads to the same token of the target twice")
    if said is None:
        return token_ids
    if said.shape != (vocab_size,):
        raise ModelError(f"'{head}' is corrupt: t2d should be [{vocab_size}], but is {_describe(said)}")
    if not torch.equal(said.bool(), is_said(token_ids, vocab_size)):
        raise ModelError(f"'{head}' is corrupt: d2t and t2d name different tokens of the target")
    return token_ids


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype}"
