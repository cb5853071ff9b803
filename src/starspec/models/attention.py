"""Attention over the ragged cache, row by row, so that no row can touch another row's bits.

Which tokens attend together is planned once a forward (`models/attention_plan.py`). A call of the plan has one of
three forms:

* **by token**: every token is a batch entry, and the heads that share a key head are its query rows. So a token's
  arithmetic has one shape, whoever is beside it; keys are read once a token.
* **by run**: a batch entry a key head; the tokens, and the heads that share it, are the query rows. Keys are read once.
* **by chunk** (prompts): causal, a batch entry a head, query rows in long blocks.

No keys are copied: heads of one group share them by stride 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.errors import ForwardGivenUp

# Below four query rows MKL picks its kernel by the alignment of a thread's buffer, and bits follow the thread.
MIN_QUERY_ROWS: Final = 4


class Form(Enum):
    """What of a call is batch entries, and what is query rows."""

    BY_TOKEN = auto()
    BY_RUN = auto()
    BY_CHUNK = auto()


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
class Interruptible:
    """Attention of a forward that ends before its next layer once nobody wants what comes of it."""

    attention: BatchAttention
    is_in_vain: Callable[[], bool]

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, scaling: float) -> Tensor:
        """As `BatchAttention`. Raises: ForwardGivenUp."""
        if self.is_in_vain():
            raise ForwardGivenUp("nobody wants this forward any more")
        return self.attention(layer, query, keys_values, scaling)


@dataclass(frozen=True, slots=True)
class Branch:
    """A path of a tree that is laid behind the prefix, in order, while its tokens attend."""

    prefix_len: int
    num_tokens: int  # of the segment, in the slots behind the prefix
    path: Tensor  # [P] of them, ancestors first


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call of a forward: new tokens `first..last` of the packed batch against one cache row.

    M query rows a token: its heads that share a key head, and padding up to `MIN_QUERY_ROWS`.
    """

    row: int
    first: int
    last: int  # exclusive
    num_slots: int  # S: slots of the row that are read
    form: Form
    mask: Tensor | None  # additive; by token [T, 1, 1, S], by run [1, 1, T M, S], by chunk [T, S] or None = causal
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
        self._cache = cache
        self._placements = placements
        self._num_tokens = sum(each.num_tokens for each in placements)
        self._rows, self._slots = _indices(placements, cache.device)
        # Key heads first: then tokens and heads of one call are query rows as they lie.
        shape = (num_kv_heads, num_rows, max(group, MIN_QUERY_ROWS), head_dim)
        queries = torch.zeros(shape, dtype=cache.dtype, device=cache.device)
        self._query = queries[:, :, :group].transpose(0, 1)  # [R, H, G, D]
        self._out = torch.zeros((num_rows, num_kv_heads, group, head_dim), dtype=cache.dtype, device=cache.device)
        self._calls = [
            (call, _query_rows(queries, group, call), self._out[call.first : call.last].transpose(0, 1))
            for call in calls
        ]

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, scaling: float) -> Tensor:
        """Write the new keys and values of one layer, then attend.

        Args:
            query: [R, Hq, D], rotated.
            keys_values: [R, 2, H, D], keys rotated; what is there for padding is not written.
        Returns: [R, Hq D], valid until the next layer; zeros for padding.
        """
        self._write(layer, keys_values[: self._num_tokens])
        # Into a buffer whose rows lie as they always do: strides that follow the batch would choose the kernel.
        self._query.copy_(query.view(self._query.shape))
        as_written: dict[int, tuple[Tensor, Tensor]] = {}  # row -> slots of its tree, and a copy of what was in them
        for call, rows, out in self._calls:
            if call.branch is not None:
                self._lay_out(layer, call.row, call.branch, as_written)
            out.copy_(ATTEND[call.form](rows, self._cache, layer, call, scaling)[:, :, : out.shape[2]])
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


def _query_rows(queries: Tensor, group: int, call: AttentionCall) -> Tensor:
    """The queries [H, R, M, D] of one call's tokens, as its form takes them; a view."""
    part = queries[:, call.first : call.last]
    match call.form:
        case Form.BY_TOKEN:
            # one entry on its own would be computed by all threads together, several by one thread each
            return part.transpose(0, 1).expand(2 if part.shape[:2] == (1, 1) else -1, -1, -1, -1)  # [T, H, M, D]
        case Form.BY_RUN:
            return part.flatten(1, 2).expand(
                2 if len(part) == 1 else 1, -1, -1, -1
            )  # [1, H, T M, D]; for the same reason
        case Form.BY_CHUNK:
            return part[:, :, :group].transpose(1, 2)  # [H, G, T, D]; only small products need the padding


def _attend_by_token(rows: Tensor, cache: RaggedCache, layer: int, call: AttentionCall, scaling: float) -> Tensor:
    """[T, H, M, D] -> [H, T, M, D]."""
    keys, values = cache.window(layer, call.row, call.num_slots, len(rows))  # [T, H, S, D]
    out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=call.mask, scale=scaling)
    return out[: call.last - call.first].transpose(0, 1)


def _attend_by_run(rows: Tensor, cache: RaggedCache, layer: int, call: AttentionCall, scaling: float) -> Tensor:
    """[1, H, T M, D] -> [H, T, M, D]."""
    keys, values = cache.window(layer, call.row, call.num_slots, len(rows))  # [1, H, S, D]
    out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=call.mask, scale=scaling)[0]
    return out.view(len(out), call.last - call.first, -1, out.shape[2])


def _attend_by_chunk(rows: Tensor, cache: RaggedCache, layer: int, call: AttentionCall, scaling: float) -> Tensor:
    """[H, G, T, D] -> [H, T, G, D]."""
    keys, values = cache.window(layer, call.row, call.num_slots, rows.shape[1])  # [G, H, S, D]
    out = F.scaled_dot_product_attention(
        rows,
        keys.transpose(0, 1),
        values.transpose(0, 1),
        attn_mask=call.mask,
        is_causal=call.mask is None,
        scale=scaling,
    )
    return out.transpose(1, 2)


ATTEND: Final = {Form.BY_TOKEN: _attend_by_token, Form.BY_RUN: _attend_by_run, Form.BY_CHUNK: _attend_by_chunk}


def _indices(placements: Sequence[Placement], device: torch.device) -> tuple[Tensor, Tensor]:
    """[T] row and [T] slot of each packed row that is no padding."""
    rows = [each.row for each in placements for _ in range(each.num_tokens)]
    slots = [each.slot + token for each in placements for token in range(each.num_tokens)]
    return (
        torch.tensor(rows, dtype=torch.int64, device=device),
        torch.tensor(slots, dtype=torch.int64, device=device),
    )
