"""The probe of attention in fixed shapes: does a token get the bits that it has alone, whatever the step's shape is?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.attention.scores import ScoreRule
from starspec.models.batch import Piece
from starspec.models.graphs.step_batch import MAX_READ_BYTES, MIN_SLOTS, StepBatch, StepShape, num_slot_bytes
from starspec.models.numerics.sensitive_inputs import SensitiveValues, half_uniform
from starspec.models.runner import Segment

PREFIX_LENS: Final = (3, 60, 250, 505, 1500)  # committed slots: inside a key block, and across some
FEW_TOKENS: Final = 12  # of the chain behind each prefix
EACH_BEHIND: Final = 60  # the prefix behind which every number of tokens is tried
MAX_ENTRIES: Final = 64  # tokens of a step that preserves bits
SLOTS: Final = (MIN_SLOTS, 512, 1024, 2048, 4096)  # numbers of slots that are tried, besides all that a row has


@torch.inference_mode()
def steps_are_invariant(like: RaggedCache, num_heads: int, rule: ScoreRule) -> bool:
    """Whether a token of a chain attends with the bits that it has alone, over the fewest slots that hold it.

    Tried are every number of tokens together, two sequences, more masked slots (up to a whole row of the cache), and
    slots in another order, as in a tree.

    Args:
        like: a cache with the model's heads, dtype, device and row length.
        num_heads: Hq.
        rule: of a layer.
    """
    num_kv_heads, row_len, head_dim = like.keys[0].shape[1:]
    cache = RaggedCache(1, 2, max(*SLOTS, row_len), num_kv_heads, head_dim, dtype=like.dtype, device=like.device)
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(num_kv_heads, SLOTS[-1], head_dim, generator=generator)  # the same in both rows
    values = SensitiveValues((num_kv_heads, SLOTS[-1], head_dim), like.dtype, generator)
    query = half_uniform(torch.randn(MAX_ENTRIES, num_heads, head_dim, generator=generator)).to(like.device, like.dtype)
    new_keys = torch.randn(MAX_ENTRIES, num_kv_heads, head_dim, generator=generator)
    rows = [cache.lease(), cache.lease()]
    for prefix_len in PREFIX_LENS:
        for stored, content in ((cache.keys[0], keys), (cache.values[0], values.of_prefix)):
            stored[:, :, : SLOTS[-1]].copy_(content)
        for row in rows:
            cache.truncate(row, 0)
            cache.append(row, prefix_len)
        new_values = values.of_chain(prefix_len, MAX_ENTRIES).transpose(0, 1)
        new = torch.stack((new_keys, new_values.float()), dim=1).to(like.device, like.dtype)
        if not _is_as_alone(partial(_attend, rule), cache, rows, prefix_len, query, new):
            return False
    return True


def _is_as_alone(
    attend: Callable[..., Tensor],
    cache: RaggedCache,
    rows: Sequence[int],
    prefix_len: int,
    query: Tensor,
    new: Tensor,
) -> bool:
    num_tokens = MAX_ENTRIES if prefix_len == EACH_BEHIND else FEW_TOKENS
    chain = list(range(num_tokens))
    alone = []
    for token in chain:
        shape = StepShape(1, 1, next(num for num in SLOTS if num > prefix_len + token), 0)
        segment = Segment(rows[0], chain[: token + 1], 1, num_forwarded=token)
        alone.append(attend(cache, shape, [segment], query[token : token + 1], new[token : token + 1]))
    expected = torch.cat(alone)

    def is_kept(num_rows: int, num_in_each: int, num_slots: int) -> bool:
        segments = [Segment(row, chain[:num_in_each], 1) for row in rows[:num_rows]]
        told = [each[:num_in_each].repeat(num_rows, *[1] * (each.dim() - 1)) for each in (query, new)]
        found = attend(cache, StepShape(num_rows, num_in_each, num_slots, 0), segments, *told)
        return torch.equal(found, expected[:num_in_each].repeat(num_rows, 1))

    fewest = next(num for num in SLOTS if num >= prefix_len + num_tokens)
    wider = sorted({num for num in (*SLOTS, cache.keys[0].shape[2]) if num >= fewest})
    return (
        _is_kept_in_a_tree(attend, cache, rows[0], expected[: FEW_TOKENS // 2], query, new)
        and all(is_kept(1, num, fewest) for num in range(1, num_tokens + 1))
        and all(
            is_kept(2, min(num_tokens, MAX_ENTRIES // 2), num_slots) for num_slots in wider if _fits(cache, num_slots)
        )
        and is_kept(1, 1, wider[-1])
    )


def _is_kept_in_a_tree(
    attend: Callable[..., Tensor], cache: RaggedCache, row: int, expected: Tensor, query: Tensor, new: Tensor
) -> bool:
    """Whether each token of a chain keeps its bits behind a sibling that it does not see."""
    num_nodes = 2 * len(expected)
    tree = Segment(row, [0] * num_nodes, 1, [2 * (node // 2) - 1 for node in range(num_nodes)])
    twice = [each[: len(expected)].repeat_interleave(2, dim=0) for each in (query, new)]
    return torch.equal(attend(cache, StepShape(1, num_nodes, SLOTS[-1], 0), [tree], *twice)[1::2], expected)


def _fits(cache: RaggedCache, num_slots: int) -> bool:
    """Whether a step of MAX_ENTRIES tokens may read this many slots for each."""
    return MAX_ENTRIES * num_slots * num_slot_bytes(cache) <= MAX_READ_BYTES


def _attend(
    rule: ScoreRule,
    cache: RaggedCache,
    shape: StepShape,
    segments: Sequence[Segment],
    query: Tensor,
    new: Tensor,
) -> Tensor:
    """Attention of the new tokens: [R, Hq D]."""
    batch = StepBatch(shape, cache, query.shape[1])
    batch.fill([Piece(each, each.num_forwarded, len(each.token_ids)) for each in segments])
    batch.prepare()
    return batch.packed.attention(0, query, new, rule)
