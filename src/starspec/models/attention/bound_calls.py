"""Planned attention calls bound to their tensors (queries, cache, output) and run: one class for each form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.attention.call import AttentionCall, Form, num_query_rows
from starspec.models.attention.scores import Masks, ScoreRule, attended


class BoundCall(ABC):
    """A call with its views of queries, cache and output.

    Args:
        call: as planned.
        query: the queries, in the shape of the form.
        keys, values: of each layer.
        out: where the result goes.
    """

    def __init__(
        self, call: AttentionCall, query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], out: Tensor
    ) -> None:
        self.rows, self.laid_out = call.rows, call.laid_out
        mask = None if call.mask is None else call.mask.to(query.device)
        self._masks = Masks(mask, call.num_slots, query)
        self._query, self._keys, self._values, self._out = query, keys, values, out

    def attend(self, layer: int, rule: ScoreRule) -> None:
        """Run the call for one layer. Effects: the call's part of the output."""
        keys, values = self._read(layer)
        if rule.sinks is not None:
            rule = replace(rule, sinks=self._by_query_row(rule.sinks))
        found = attended(self._query, keys, values, self._masks.within(rule.window), rule)
        self._out.copy_(self._without_padding(found))

    def _by_query_row(self, sinks: Tensor) -> Tensor:
        """Sinks [Hq] in the shape of the queries: [H, T M, 1], or [H, M, 1] by token."""
        num_kv_heads, num_rows = self._query.shape[1:3]
        of_group = sinks.view(num_kv_heads, -1)  # [H, G]
        num_heads = of_group.shape[1]
        of_token = F.pad(of_group, (0, num_query_rows(num_heads) - num_heads))  # [H, M]
        return of_token.repeat(1, num_rows // of_token.shape[1]).unsqueeze(-1)

    def _read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._keys[layer], self._values[layer]

    @abstractmethod
    def _without_padding(self, found: Tensor) -> Tensor:
        """The kernel's result without padding, in the shape of the output."""


class ByToken(BoundCall):
    """One batch entry for each token. Queries [T, H, M, D]."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: queries: [H, R, M, D]; out: [R, H, G, D]; of all packed rows."""
        part = queries[:, call.first : call.last].transpose(0, 1)
        # the kernel would compute a single entry with all threads, but several entries with one thread each
        num_copies = 2 if part.shape[:2] == (1, 1) else len(part)
        keys, values = cache.windows(call.row, call.num_slots, num_copies)
        super().__init__(call, part.expand(num_copies, -1, -1, -1), keys, values, out[call.first : call.last])

    def _without_padding(self, found: Tensor) -> Tensor:
        return found[: self._out.shape[0], :, : self._out.shape[2]]


class ByRun(BoundCall):
    """One batch entry for each key head. Queries [1, H, T M, D]."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: as `ByToken`."""
        part = queries[:, call.first : call.last]
        num_copies = 2 if len(part) == 1 else 1  # as in `ByToken`
        keys, values = cache.windows(call.row, call.num_slots, num_copies)
        query = part.flatten(1, 2).expand(num_copies, -1, -1, -1)
        super().__init__(call, query, keys, values, out[call.first : call.last].transpose(0, 1))
        self._padded = part.shape

    def _without_padding(self, found: Tensor) -> Tensor:
        return found[0].view(self._padded)[:, :, : self._out.shape[2]]


class ByChunk(BoundCall):
    """Prefill. Queries [H, G, T, D], without padding: only small products need it."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: as `ByToken`."""
        group = out.shape[2]
        query = queries[:, call.first : call.last, :group].transpose(1, 2)
        keys, values = (
            [each.transpose(0, 1) for each in kind] for kind in cache.windows(call.row, call.num_slots, group)
        )
        super().__init__(call, query, keys, values, out[call.first : call.last].permute(1, 2, 0, 3))

    def _by_query_row(self, sinks: Tensor) -> Tensor:
        return sinks.view(*self._query.shape[:2], 1, 1)

    def _without_padding(self, found: Tensor) -> Tensor:
        return found


class ByRows(BoundCall):
    """Runs of several cache rows. Queries [N, H, T M, D]."""

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
    """Branches of one tree. Queries [N, H, T M, D]."""

    def __init__(self, call: AttentionCall, cache: RaggedCache, queries: Tensor, out: Tensor) -> None:
        """Args: as `ByToken`."""
        num_branches, prefix_len = len(call.branches), call.branches[0].prefix_len
        part = torch.unflatten(queries[:, call.first : call.last], 1, (num_branches, -1)).transpose(0, 1)
        num_copies = max(2, num_branches)  # as in `ByToken`
        out = torch.unflatten(out[call.first : call.last], 0, (num_branches, -1)).transpose(1, 2)  # [N, H, T, G, D]
        super().__init__(call, part.flatten(2, 3).expand(num_copies, -1, -1, -1), (), (), out)
        self._padded = part.shape
        self._stored = cache.of_row(call.row)  # [2, H, slots, D] a layer
        # zeros behind the paths, because masked values are multiplied by 0, and 0 * NaN is NaN
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
