"""Attention over the ragged cache, row by row, so that no row can touch another row's bits.

Two forms, chosen by the segment alone:

* **by token** (decoding, verifying): every new token is a batch entry of its own, and the heads that share a key head
  are its query rows. A token in slot p always reads the first `ceil((p + 1) / 64) * 64` slots, masked. So its
  arithmetic has the same shape whether it is decoded alone, verified inside a chain or batched with others:

      slots   0 ........ 63 | 64 ....... 127        a chain of 4 behind 62 committed slots is two calls:
      chain           62 63 | 64 65                 tokens 62, 63 read one block, tokens 64, 65 read two

* **by chunk** (prompts): one call a segment, causal, query rows in long blocks.

Neither copies keys: heads of one group share them by stride 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.cache.mask import is_chain, visible_slots
from starspec.cache.ragged import KEY_BLOCK, RaggedCache

# Below four query rows MKL picks its kernel by the alignment of a thread's buffer, and bits follow the thread.
MIN_QUERY_ROWS: Final = 4


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call of a forward: new tokens `first..last` of the packed batch against one cache row."""

    row: int
    first: int
    last: int  # exclusive
    num_slots: int  # S: slots of the row that are read
    by_token: bool
    mask: Tensor | None  # additive; by token [T, 1, 1, S], by chunk [T, S]; None by chunk = causal from slot 0


def plan_calls(
    row: int,
    first: int,
    prefix_len: int,
    *,
    parents: Sequence[int] | None,
    new_tokens: range,
    by_token: bool,
    like: Tensor,
) -> list[AttentionCall]:
    """The calls of one segment, or of a part of it.

    Args:
        first: where the part starts in the packed batch.
        prefix_len: committed slots of the row.
        parents: of the whole segment, None for a chain.
        new_tokens: the part of the segment that this forward computes; what comes before it is in the cache.
        like: gives dtype and device of the masks.
    """
    if not by_token:
        return [_call_by_chunk(row, first, prefix_len, new_tokens, like)]
    calls = []
    start = new_tokens.start
    while start < new_tokens.stop:
        num_slots = ((prefix_len + start) // KEY_BLOCK + 1) * KEY_BLOCK
        stop = min(new_tokens.stop, num_slots - prefix_len)
        mask = _mask_by_token(prefix_len, parents, range(start, stop), num_slots, like)
        calls.append(AttentionCall(row, first, first + stop - start, num_slots, True, mask))
        first, start = first + stop - start, stop
    return calls


def attend(
    query: Tensor, cache: RaggedCache, layer: int, calls: Sequence[AttentionCall], *, num_heads: int, scaling: float
) -> Tensor:
    """Attention of one layer, after the new keys and values were written.

    Args:
        query: [R, H, M, D] rotated queries of the packed batch as `group_queries` lays them out.
        num_heads: query heads without padding.
    Returns: [R, Hq D] contiguous; zeros for rows that no call covers (padding).
    """
    num_rows, num_kv_heads, _, head_dim = query.shape
    group = num_heads // num_kv_heads
    if len(calls) == 1 and calls[0].last == num_rows:
        out = _attend_once(query, cache, layer, calls[0], group=group, scaling=scaling)
    else:
        out = query.new_zeros(num_rows, num_kv_heads, group, head_dim)
        for call in calls:
            part = query[call.first : call.last]
            out[call.first : call.last] = _attend_once(part, cache, layer, call, group=group, scaling=scaling)
    return out.reshape(num_rows, num_heads * head_dim).contiguous()


def group_queries(query: Tensor, num_kv_heads: int) -> Tensor:
    """Lay queries out by key head, [R, Hq, D] -> [R, H, M, D], where M >= 4 pads the group with zeros.

    Rows of a group are contiguous: a stride that depends on R would choose the kernel.
    """
    num_rows, num_heads, head_dim = query.shape
    group = num_heads // num_kv_heads
    grouped = query.contiguous().view(num_rows, num_kv_heads, group, head_dim)
    return F.pad(grouped, (0, 0, 0, max(0, MIN_QUERY_ROWS - group)))


def _attend_once(
    query: Tensor, cache: RaggedCache, layer: int, call: AttentionCall, *, group: int, scaling: float
) -> Tensor:
    """[T, H, M, D] -> [T, H, G, D]."""
    keys = cache.keys[layer][call.row, :, : call.num_slots]  # [H, S, D]
    values = cache.values[layer][call.row, :, : call.num_slots]
    if call.by_token:
        return _attend_by_token(query, keys, values, call.mask, scaling)[:, :, :group]
    return _attend_by_chunk(query[:, :, :group], keys, values, call.mask, scaling)


def _attend_by_token(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """query [T, H, M, D], keys and values [H, S, D] -> [T, H, M, D]."""
    num_tokens, num_kv_heads = query.shape[:2]
    if num_tokens * num_kv_heads == 1:
        # one entry on its own would be computed by all threads together, several by one thread each
        query = query.expand(2, -1, -1, -1)
    num_entries = query.shape[0]
    out = F.scaled_dot_product_attention(
        query,
        keys.expand(num_entries, -1, -1, -1),
        values.expand(num_entries, -1, -1, -1),
        attn_mask=mask,
        scale=scaling,
    )
    return out[:num_tokens]


def _attend_by_chunk(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """query [T, H, G, D], keys and values [H, S, D] -> [T, H, G, D]."""
    group = query.shape[2]
    out = F.scaled_dot_product_attention(
        query.permute(1, 2, 0, 3),  # [H, G, T, D]
        keys.unsqueeze(1).expand(-1, group, -1, -1),  # [H, G, S, D]
        values.unsqueeze(1).expand(-1, group, -1, -1),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
    )
    return out.permute(2, 0, 1, 3)


def _call_by_chunk(row: int, first: int, prefix_len: int, new_tokens: range, like: Tensor) -> AttentionCall:
    num_slots = prefix_len + new_tokens.stop
    mask = None
    if num_slots > len(new_tokens):  # torch aligns `is_causal` with slot 0, so it fits an empty prefix only
        mask = _additive(visible_slots(num_slots - len(new_tokens), len(new_tokens), None), like)
    return AttentionCall(row, first, first + len(new_tokens), num_slots, False, mask)


def _mask_by_token(
    prefix_len: int, parents: Sequence[int] | None, new_tokens: range, num_slots: int, like: Tensor
) -> Tensor:
    """[T, 1, 1, S] additive."""
    if parents is None or is_chain(parents):
        limits = torch.arange(prefix_len + new_tokens.start, prefix_len + new_tokens.stop).unsqueeze(1)
        visible = torch.arange(num_slots) <= limits
    else:
        whole = visible_slots(prefix_len, new_tokens.stop, parents[: new_tokens.stop])
        visible = F.pad(whole[new_tokens.start :], (0, num_slots - whole.shape[1]))
    return _additive(visible, like)[:, None, None]


def _additive(visible: Tensor, like: Tensor) -> Tensor:
    """0 where visible, -inf where not."""
    mask = torch.zeros(visible.shape, dtype=like.dtype)
    return mask.masked_fill_(~visible, float("-inf")).to(like.device)
