"""Whether attention in steps gives a token the bits that it has alone, whatever the step's shape: tried at load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.batch import Piece, RowRange
from starspec.models.runner import Segment
from starspec.models.step_batch import MIN_SLOTS, StepBatch, StepShape

PREFIX_LENS: Final = (3, 60, 250, 505, 1500)  # committed slots: inside a block of keys, and across some
NUM_TOKENS: Final = 12
SLOTS: Final = (MIN_SLOTS, 512, 1024, 2048, 4096)  # further ones are more of the same blocks
ANY_ROWS: Final = RowRange(lowest=1, highest=None)


@torch.inference_mode()
def steps_are_invariant(like: RaggedCache, num_heads: int) -> bool:
    """Whether a token of a chain attends with the bits that it has alone, over the fewest slots that hold it.

    Tried are more tokens, more sequences, more slots that are hidden, and slots in another order: a tree's.
    """
    num_kv_heads, _, head_dim = like.keys[0].shape[1:]
    cache = RaggedCache(1, 2, max(SLOTS), num_kv_heads, head_dim, dtype=like.dtype, device=like.device)
    generator = torch.Generator().manual_seed(0)
    content = torch.randn(2, num_kv_heads, max(SLOTS), head_dim, generator=generator)  # the same in both rows
    query = torch.randn(NUM_TOKENS, num_heads, head_dim, generator=generator).to(like.device, like.dtype)
    new = torch.randn(NUM_TOKENS, 2, num_kv_heads, head_dim, generator=generator).to(like.device, like.dtype)
    rows = [cache.lease(), cache.lease()]
    for prefix_len in PREFIX_LENS:
        for kind, stored in enumerate((cache.keys[0], cache.values[0])):
            stored.copy_(content[kind].expand_as(stored))
        for row in rows:
            cache.truncate(row, 0)
            cache.append(row, prefix_len)
        if not _is_as_alone(cache, rows, prefix_len, query, new):
            return False
    return True


def _is_as_alone(cache: RaggedCache, rows: Sequence[int], prefix_len: int, query: Tensor, new: Tensor) -> bool:
    chain = list(range(NUM_TOKENS))
    alone = []
    for token in chain:
        shape = StepShape(1, 1, next(num for num in SLOTS if num > prefix_len + token))
        segment = Segment(rows[0], chain[: token + 1], 1, num_forwarded=token)
        alone.append(_attend(cache, shape, [segment], query[token : token + 1], new[token : token + 1]))
    expected = torch.cat(alone)
    # each token of the chain behind a sibling that it does not see
    tree = Segment(rows[0], [0] * 2 * NUM_TOKENS, 1, [2 * (node // 2) - 1 for node in range(2 * NUM_TOKENS)])
    twice = [each.repeat_interleave(2, dim=0) for each in (query, new)]
    hidden = _attend(cache, StepShape(1, 2 * NUM_TOKENS, max(SLOTS)), [tree], *twice)[1::2]
    chains = [Segment(row, chain, 1) for row in rows]
    wider = [num for num in SLOTS if num >= prefix_len + NUM_TOKENS]
    return torch.equal(hidden, expected) and all(
        torch.equal(_attend(cache, StepShape(2, NUM_TOKENS, num_slots), chains, *_double(query, new)), _twice(expected))
        for num_slots in wider
    )


def _attend(cache: RaggedCache, shape: StepShape, segments: Sequence[Segment], query: Tensor, new: Tensor) -> Tensor:
    """[R, Hq D]: what the new tokens attend to."""
    batch = StepBatch(shape, cache, query.shape[1])
    batch.fill([Piece(each, each.num_forwarded, len(each.token_ids)) for each in segments])
    batch.prepare()
    return batch.packed.attention(0, query, new, query.shape[2] ** -0.5)


def _double(*tensors: Tensor) -> list[Tensor]:
    return [_twice(each) for each in tensors]


def _twice(each: Tensor) -> Tensor:
    return torch.cat((each, each))
