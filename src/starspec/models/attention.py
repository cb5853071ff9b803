"""Attention over the ragged cache: no row can touch another row's bits, if a forward's calls are planned for that.

Which tokens attend together is planned once a forward (`models/attention_plan.py`). A call of the plan has one of
five forms:

* **by token**: every token is a batch entry, and the heads that share a key head are its query rows. So a token's
  arithmetic has one shape, whoever is beside it; keys are read once a token.
* **by run**: a batch entry a key head; the tokens, and the heads that share it, are the query rows. Keys are read once.
* **by chunk** (prompts): causal, a batch entry a head, query rows in long blocks.
* **by rows**: runs of several cache rows, as long as each other, in one call; masks hide where a row has fewer slots
  than another. Keys of rows that do not lie side by side are copied (on accelerators).
* **by branches**: branches of a row's tree, as long as each other, in one call; each has its own copy of the prefix,
  with its path behind it.

Else no keys are copied: heads of one group share them by stride 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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


def num_query_rows(group: int) -> int:
    """M: query rows of a token whose G heads share a key head.

    Even, so that what a long run leaves over for the kernel's last block of rows is seldom too small.
    """
    return max(MIN_QUERY_ROWS, group + group % 2)


class Form(Enum):
    """What of a call is batch entries, and what is query rows."""

    BY_TOKEN = auto()
    BY_RUN = auto()
    BY_CHUNK = auto()
    BY_ROWS = auto()
    BY_BRANCHES = auto()


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
    """A path of a tree that lies behind the prefix, in order, while its tokens attend."""

    prefix_len: int
    num_tokens: int  # of the segment, in the slots behind the prefix
    path: Tensor  # [P] of them, ancestors first


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call of a forward: new tokens `first..last` of the packed batch against one cache row, or several.

    M query rows a token: its heads that share a key head, and padding (`num_query_rows`).
    """

    rows: tuple[int, ...]  # N if by rows, each with T tokens; else one
    first: int
    last: int  # exclusive
    num_slots: int  # S: slots of a row that are read
    form: Form
    mask: Tensor | None
    """On the CPU. Additive; by token [T, 1, 1, S], by run [1, 1, T M, S], by chunk [T, S] or None = causal, by rows and
    by branches [N, 1, T M, S]"""
    branches: tuple[Branch, ...] = ()
    """For tokens whose ancestors are not in the slots before them: one, laid out in the cache; N by branches, each with
    T tokens"""

    @property
    def row(self) -> int:
        """The only one."""
        [row] = self.rows
        return row


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the keys and values of consecutive packed rows go."""

    row: int
    slot: int  # of the first
    num_tokens: int


class RaggedAttention:
    """Attention of one forward, for all its layers: what they share, views of every layer included, is made once.

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
        self._num_tokens = sum(each.num_tokens for each in placements)
        self._write = _writer(cache, placements)
        # Key heads first: then tokens and heads of one call are query rows as they lie.
        shape = (num_kv_heads, num_rows, num_query_rows(group), head_dim)
        queries = torch.zeros(shape, dtype=cache.dtype, device=cache.device)
        self._query = queries[:, :, :group].transpose(0, 1)  # [R, H, G, D]
        out = torch.zeros((num_rows, num_kv_heads, group, head_dim), dtype=cache.dtype, device=cache.device)
        self._calls = [BOUND[call.form](call, cache, queries, out) for call in calls]
        self._trees = _tree_slots(cache, calls)
        self._out = out.view(num_rows, -1)

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
        as_written = {row: slots[layer].clone() for row, slots in self._trees.items()}
        for call in self._calls:
            if call.laid_out is not None:  # into the slots in which it would have been decoded
                [row] = call.rows
                slots = self._trees[row][layer][: len(call.laid_out.path)]
                torch.index_select(as_written[row], 0, call.laid_out.path, out=slots)
            call.attend(layer, scaling)
        for row, content in as_written.items():
            self._trees[row][layer].copy_(content)
        return self._out


class BoundCall(ABC):
    """A call with its views of queries, cache and output.

    Args:
        query: what is attended with, as the form takes it.
        keys, values: of each layer.
        out: where what comes of it goes.
    """

    def __init__(
        self, call: AttentionCall, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], out: Tensor
    ) -> None:
        self.rows, self.laid_out = call.rows, _laid_out(call)
        self._mask = None if call.mask is None else call.mask.to(query.device)
        self._query, self._keys, self._values, self._out = query, keys, values, out

    def attend(self, layer: int, scaling: float) -> None:
        """Effects: the call's part of the output."""
        keys, values = self._read(layer)
        is_causal = self._mask is None
        found = F.scaled_dot_product_attention(
            self._query, keys, values, attn_mask=self._mask, is_causal=is_causal, scale=scaling
        )
        self._out.copy_(self._without_padding(found))

    def _read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._keys[layer], self._values[layer]

    @abstractmethod
    def _without_padding(self, found: Tensor) -> Tensor:
        """What attention gave, without what is there for the kernel's sake alone; shaped as the output."""


class ByToken(BoundCall):
    """Queries [T, H, M, D]."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: queries: [H, R, M, D]; out: [R, H, G, D]; of all packed rows."""
        part = queries[:, call.first : call.last].transpose(0, 1)
        # one entry on its own would be computed by all threads together, several by one thread each
        num_copies = 2 if part.shape[:2] == (1, 1) else len(part)
        keys, values = cache.windows(call.row, call.num_slots, num_copies)
        super().__init__(call, part.expand(num_copies, -1, -1, -1), keys, values, out[call.first : call.last])

    def _without_padding(self, found: Tensor) -> Tensor:
        return found[: self._out.shape[0], :, : self._out.shape[2]]


class ByRun(BoundCall):
    """Queries [1, H, T M, D]."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: as `ByToken`."""
        part = queries[:, call.first : call.last]
        num_copies = 2 if len(part) == 1 else 1  # as by token
        keys, values = cache.windows(call.row, call.num_slots, num_copies)
        query = part.flatten(1, 2).expand(num_copies, -1, -1, -1)
        super().__init__(call, query, keys, values, out[call.first : call.last].transpose(0, 1))
        self._padded = part.shape

    def _without_padding(self, found: Tensor) -> Tensor:
        return found[0].view(self._padded)[:, :, : self._out.shape[2]]


class ByChunk(BoundCall):
    """Queries [H, G, T, D]; only small products need the padding."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: as `ByToken`."""
        group = out.shape[2]
        query = queries[:, call.first : call.last, :group].transpose(1, 2)
        keys, values = (
            [each.transpose(0, 1) for each in kind] for kind in cache.windows(call.row, call.num_slots, group)
        )
        super().__init__(call, query, keys, values, out[call.first : call.last].permute(1, 2, 0, 3))

    def _without_padding(self, found: Tensor) -> Tensor:
        return found


class ByRows(BoundCall):
    """Queries [N, H, T M, D]."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: as `ByToken`."""
        num_rows = len(call.rows)
        part = torch.unflatten(queries[:, call.first : call.last], 1, (num_rows, -1)).transpose(0, 1)  # [N, H, T, M, D]
        keys, values = ([each[:, :, : call.num_slots] for each in kind] for kind in (cache.keys, cache.values))
        out = torch.unflatten(out[call.first : call.last], 0, (num_rows, -1)).transpose(1, 2)  # [N, H, T, G, D]
        super().__init__(call, part.flatten(2, 3), keys, values, out)
        self._padded = part.shape
        first_row = call.rows[0]
        is_one_block = call.rows == tuple(range(first_row, first_row + num_rows))
        self._rows = (
            slice(first_row, first_row + num_rows) if is_one_block else torch.tensor(call.rows, device=cache.device)
        )

    def _read(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = super()._read(layer)
        return keys[self._rows], values[self._rows]

    def _without_padding(self, found: Tensor) -> Tensor:
        return found.view(self._padded)[:, :, :, : self._out.shape[3]]


class ByBranches(BoundCall):
    """Queries [N, H, T M, D]."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: as `ByToken`."""
        num_branches, prefix_len = len(call.branches), call.branches[0].prefix_len
        part = torch.unflatten(queries[:, call.first : call.last], 1, (num_branches, -1)).transpose(0, 1)
        num_copies = max(2, num_branches)  # as by token
        out = torch.unflatten(out[call.first : call.last], 0, (num_branches, -1)).transpose(1, 2)  # [N, H, T, G, D]
        super().__init__(call, part.flatten(2, 3).expand(num_copies, -1, -1, -1), (), (), out)
        self._padded = part.shape
        self._stored = cache.of_row(call.row)  # [2, H, slots, D] a layer
        # zeros behind the paths: what is hidden is multiplied by 0, and 0 * NaN is NaN
        _, num_kv_heads, _, head_dim = cache.keys[0].shape
        self._copies = queries.new_zeros(2, num_branches, num_kv_heads, call.num_slots, head_dim)
        self._prefix = self._copies[:, :, :, :prefix_len]
        longest = max(len(each.path) for each in call.branches)
        self._paths = self._copies[:, :, :, prefix_len : prefix_len + longest]
        paths = [F.pad(each.path, (0, longest - len(each.path)), value=0) for each in call.branches]
        self._slots = torch.cat(paths) + prefix_len

    def _read(self, layer: int) -> tuple[Tensor, Tensor]:
        stored, num_branches = self._stored[layer], self._copies.shape[1]
        self._prefix.copy_(stored[:, None, :, : self._prefix.shape[3]])
        paths = stored.index_select(2, self._slots)  # [2, H, N P, D]
        self._paths.copy_(torch.unflatten(paths, 2, (num_branches, -1)).transpose(1, 2))
        keys, values = self._copies.expand(-1, len(self._query), -1, -1, -1)
        return keys, values

    def _without_padding(self, found: Tensor) -> Tensor:
        return found[: self._padded[0]].view(self._padded)[:, :, :, : self._out.shape[3]]


BOUND: Final[Mapping[Form, Callable[[AttentionCall, RaggedCache, Tensor, Tensor], BoundCall]]] = {
    Form.BY_TOKEN: ByToken,
    Form.BY_RUN: ByRun,
    Form.BY_CHUNK: ByChunk,
    Form.BY_ROWS: ByRows,
    Form.BY_BRANCHES: ByBranches,
}


def _laid_out(call: AttentionCall) -> Branch | None:
    return call.branches[0] if call.branches and call.form is not Form.BY_BRANCHES else None


def _tree_slots(cache: RaggedCache, calls: Sequence[AttentionCall]) -> dict[int, tuple[Tensor, ...]]:
    """Of each row with a branch that is laid out: the slots of its whole tree, one [T, 2, H, D] a layer."""
    branches = {call.row: branch for call in calls if (branch := _laid_out(call)) is not None}
    return {
        row: cache.places(row, branch.prefix_len, branch.prefix_len + branch.num_tokens)
        for row, branch in branches.items()
    }


def _writer(cache: RaggedCache, placements: Sequence[Placement]) -> Callable[[int, Tensor], object]:
    """What puts new keys and values [T, 2, H, D] of a layer where the placements say."""
    if len(placements) == 1:  # one sequence: a copy is cheaper than indices
        only = placements[0]
        places = cache.places(only.row, only.slot, only.slot + only.num_tokens)
        return lambda layer, keys_values: places[layer].copy_(keys_values)
    rows, slots = _indices(placements, cache.device)
    return lambda layer, keys_values: cache.scatter(layer, rows, slots, keys_values)


def _indices(placements: Sequence[Placement], device: torch.device) -> tuple[Tensor, Tensor]:
    """[T] row and [T] slot of each packed row that is no padding."""
    rows = [each.row for each in placements for _ in range(each.num_tokens)]
    slots = [each.slot + token for each in placements for token in range(each.num_tokens)]
    return (
        torch.tensor(rows, dtype=torch.int64, device=device),
        torch.tensor(slots, dtype=torch.int64, device=device),
    )
