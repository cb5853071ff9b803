"""Attention over the ragged cache, row by row, so that no row can touch another row's bits.

Two forms, chosen by the segment alone:

* **by token** (decoding, verifying): every new token is a batch entry of its own, and the heads that share a key head
  are its query rows. A token in slot p always reads the first `ceil((p + 1) / 64) * 64` slots, masked. So its
  arithmetic has the same shape whether it is decoded alone, verified inside a chain or batched with others:

      slots   0 ........ 63 | 64 ....... 127        a chain of 4 behind 62 committed slots is two calls:
      chain           62 63 | 64 65                 tokens 62, 63 read one block, tokens 64, 65 read two

  The first branch of a tree is a chain. A node beside it has its ancestors in other slots than it would have if it
  were decoded: kernels that sum over slots round differently then. Where the same bits are asked for (`in_order`),
  branch after branch is laid behind the prefix while its tokens attend; else a mask picks the ancestors.

* **by chunk** (prompts): one call a segment, causal, query rows in long blocks.

Otherwise no keys are copied: heads of one group share them by stride 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.cache.mask import is_chain, visible_slots
from starspec.cache.ragged import KEY_BLOCK, RaggedCache

# Below four query rows MKL picks its kernel by the alignment of a thread's buffer, and bits follow the thread.
MIN_QUERY_ROWS: Final = 4


class BatchAttention(Protocol):
    """Attention of one forward, for all its layers: where new keys and values go, and which of them a row sees."""

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, scaling: float) -> Tensor:
        """Write the new keys and values of one layer, then attend.

        Args:
            query: [R, Hq, D], rotated.
            keys_values: [R, 2, H, D], keys rotated; what is there for padding is written where nothing is read.
        Returns: [R, Hq D], valid until the next layer; anything but NaN for padding.
        """
        ...


@dataclass(frozen=True, slots=True)
class Branch:
    """A path of a tree that is laid behind the prefix, in order, while its tokens attend."""

    prefix_len: int
    num_tokens: int  # of the segment, in the slots behind the prefix
    path: Tensor  # [P] of them, ancestors first


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call of a forward: new tokens `first..last` of the packed batch against one cache row."""

    row: int
    first: int
    last: int  # exclusive
    num_slots: int  # S: slots of the row that are read
    by_token: bool
    mask: Tensor | None  # additive; by token [T, 1, 1, S], by chunk [T, S]; None by chunk = causal from slot 0
    branch: Branch | None = None  # for tokens whose ancestors are not in the slots before them


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the keys and values of consecutive packed rows go."""

    row: int
    slot: int  # of the first
    num_tokens: int


class RaggedAttention:
    """Attention of one forward, for all its layers.

    Args:
        cache: where the new keys and values go and all of them are read.
        placements: of the packed rows in order; rows after the last are padding.
        calls: which packed rows attend what; rows that no call covers are padding.
        num_rows: R, packed rows.
        num_heads: Hq.
    """

    def __init__(
        self,
        cache: RaggedCache,
        placements: Sequence[Placement],
        calls: Sequence[AttentionCall],
        *,
        num_rows: int,
        num_heads: int,
    ) -> None:
        num_kv_heads, head_dim = cache.keys[0].shape[1], cache.keys[0].shape[3]
        group = num_heads // num_kv_heads
        shape = (num_rows, num_kv_heads, group, head_dim)
        self._cache = cache
        self._placements = placements
        self._num_tokens = sum(each.num_tokens for each in placements)
        self._rows, self._slots = _indices(placements, cache.device)
        padded = (num_rows, num_kv_heads, max(group, MIN_QUERY_ROWS), head_dim)
        queries = torch.zeros(padded, dtype=cache.dtype, device=cache.device)
        self._query = queries[:, :, :group]  # [R, H, G, D]
        self._out = torch.zeros(shape, dtype=cache.dtype, device=cache.device)
        source = {True: queries, False: self._query}  # only small products need the padded group
        self._calls = [
            (call, source[call.by_token][call.first : call.last], self._out[call.first : call.last]) for call in calls
        ]

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, scaling: float) -> Tensor:
        """Write the new keys and values of one layer, then attend.

        Args:
            query: [R, Hq, D], rotated.
            keys_values: [R, 2, H, D], keys rotated; what is there for padding is not written.
        Returns: [R, Hq D], valid until the next layer; zeros for padding.
        """
        self._write(layer, keys_values[: self._num_tokens])
        # Into a buffer of fixed strides: strides that follow the batch would choose the kernel.
        self._query.copy_(query.view(self._query.shape))
        as_written: dict[int, tuple[Tensor, Tensor]] = {}  # row -> slots of its tree, and a copy of what was in them
        for call, part, out in self._calls:
            if call.branch is not None:
                self._lay_out(layer, call.row, call.branch, as_written)
            attend = _attend_by_token if call.by_token else _attend_by_chunk
            out.copy_(attend(part, self._cache, layer, call, scaling)[:, :, : out.shape[2]])
        for slots, content in as_written.values():
            slots.copy_(content)
        return self._out.view(len(self._out), -1)

    def _lay_out(self, layer: int, row: int, branch: Branch, as_written: dict[int, tuple[Tensor, Tensor]]) -> None:
        """Put the keys and values of a branch into the slots in which they would have been decoded."""
        if row not in as_written:
            slots = self._cache.slots(layer, row, branch.prefix_len, branch.prefix_len + branch.num_tokens)
            as_written[row] = slots, slots.clone()
        slots, content = as_written[row]
        torch.index_select(content, 0, branch.path, out=slots[: len(branch.path)])

    def _write(self, layer: int, keys_values: Tensor) -> None:
        if len(self._placements) == 1:  # one sequence: a slice is cheaper than indices
            only = self._placements[0]
            self._cache.put(layer, only.row, only.slot, keys_values)
        else:
            self._cache.scatter(layer, self._rows, self._slots, keys_values)


def plan_calls(
    row: int,
    first: int,
    prefix_len: int,
    *,
    parents: Sequence[int] | None,
    new_tokens: range,
    by_token: bool,
    in_order: bool,
    like: Tensor,
) -> list[AttentionCall]:
    """The calls of one segment, or of a part of it.

    Args:
        first: where the part starts in the packed batch.
        prefix_len: committed slots of the row.
        parents: of the whole segment, None for a chain.
        new_tokens: the part of the segment that this forward computes; what comes before it is in the cache.
        in_order: every token reads its ancestors as if it had been decoded behind them; for `by_token` only.
        like: gives dtype and device of the masks.
    """
    if not by_token:
        return [_call_by_chunk(row, first, prefix_len, new_tokens, like)]
    if in_order and parents is not None and not is_chain(parents):
        return _calls_in_order(row, first, prefix_len, parents, new_tokens, like)
    calls = []
    start = new_tokens.start
    while start < new_tokens.stop:
        num_slots = _num_slots(prefix_len + start)
        stop = min(new_tokens.stop, num_slots - prefix_len)
        mask = _mask_by_token(prefix_len, parents, range(start, stop), num_slots, like)
        calls.append(AttentionCall(row, first, first + stop - start, num_slots, True, mask))
        first, start = first + stop - start, stop
    return calls


def _num_slots(position: int) -> int:
    """Slots that the token of a position reads: whole blocks."""
    return (position // KEY_BLOCK + 1) * KEY_BLOCK


def _calls_in_order(
    row: int, first: int, prefix_len: int, parents: Sequence[int], new_tokens: range, like: Tensor
) -> list[AttentionCall]:
    """One call for each run of tokens down one branch that read as many slots."""
    paths: list[list[int]] = []  # of each token: its ancestors behind the prefix, and itself
    for token, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else ()), token])
    calls = []
    for run in _runs(new_tokens, prefix_len, parents, paths):
        longest = paths[run[-1]]
        num_slots = _num_slots(prefix_len + len(longest) - 1)
        lengths = torch.tensor([prefix_len + len(paths[token]) for token in run]).unsqueeze(1)
        mask = _additive(torch.arange(num_slots) < lengths, like)[:, None, None]
        branch = None
        if longest != list(range(len(longest))):  # else they lie in order as they are
            branch = Branch(prefix_len, new_tokens.stop, torch.tensor(longest).to(like.device))
        start = first + run[0] - new_tokens.start
        calls.append(AttentionCall(row, start, start + len(run), num_slots, True, mask, branch))
    return calls


def _runs(
    new_tokens: range, prefix_len: int, parents: Sequence[int], paths: Sequence[Sequence[int]]
) -> Iterator[list[int]]:
    """Tokens that follow each other, each the child of the one before and in the same key block."""
    run: list[int] = []
    for token in new_tokens:
        is_on = run and parents[token] == run[-1]
        if is_on and _num_slots(prefix_len + len(paths[token]) - 1) == _num_slots(prefix_len + len(paths[run[-1]]) - 1):
            run.append(token)
            continue
        if run:
            yield run
        run = [token]
    yield run


def _attend_by_token(query: Tensor, cache: RaggedCache, layer: int, call: AttentionCall, scaling: float) -> Tensor:
    """[T, H, M, D] -> [T, H, M, D]; a batch entry a token."""
    num_tokens = query.shape[0]
    if num_tokens * query.shape[1] == 1:
        # one entry on its own would be computed by all threads together, several by one thread each
        query = query.expand(2, -1, -1, -1)
    keys, values = cache.window(layer, call.row, call.num_slots, query.shape[0])  # [T, H, S, D]
    out = F.scaled_dot_product_attention(query, keys, values, attn_mask=call.mask, scale=scaling)
    return out[:num_tokens]


def _attend_by_chunk(query: Tensor, cache: RaggedCache, layer: int, call: AttentionCall, scaling: float) -> Tensor:
    """[T, H, G, D] -> [T, H, G, D]; a batch entry a key head."""
    keys, values = cache.window(layer, call.row, call.num_slots, query.shape[2])  # [G, H, S, D]
    out = F.scaled_dot_product_attention(
        query.permute(1, 2, 0, 3),  # [H, G, T, D]
        keys.transpose(0, 1),
        values.transpose(0, 1),
        attn_mask=call.mask,
        is_causal=call.mask is None,
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


def _indices(placements: Sequence[Placement], device: torch.device) -> tuple[Tensor, Tensor]:
    """[T] row and [T] slot of each packed row that is no padding."""
    rows = [each.row for each in placements for _ in range(each.num_tokens)]
    slots = [each.slot + token for each in placements for token in range(each.num_tokens)]
    return (
        torch.tensor(rows, dtype=torch.int64, device=device),
        torch.tensor(slots, dtype=torch.int64, device=device),
    )
