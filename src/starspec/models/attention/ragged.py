"""Attention over the ragged cache.

Which tokens attend together is planned once for each forward (`models/attention/plan.py`), as calls of several forms
(`models/attention/call.py`), which are then bound to tensors (`models/attention/bound_calls.py`). The plan can ensure
that no row influences another row's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.errors import ForwardAborted
from starspec.models.attention.bound_calls import BOUND
from starspec.models.attention.call import AttentionCall, num_query_rows
from starspec.models.attention.scores import ScoreRule


class BatchAttention(Protocol):
    """Attention of one forward, for all its layers: where new keys and values go, and which slots each token sees."""

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, rule: ScoreRule) -> Tensor:
        """Write the new keys and values of one layer, then attend.

        Args:
            layer: index.
            query: [R, Hq, D], rotated.
            keys_values: [R, 2, H, D], keys rotated; those of padding change nothing that a token reads.
            rule: how the layer weighs what its tokens see.
        Returns: [R, Hq D], valid until the next layer; for padding anything but NaN.
        """
        ...


@dataclass(frozen=True, slots=True)
class Interruptible:
    """Attention of a forward that stops before its next layer once its result is not needed any more."""

    attention: BatchAttention
    is_obsolete: Callable[[], bool]

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, rule: ScoreRule) -> Tensor:
        """As `BatchAttention`. Raises: ForwardAborted if the result is not needed."""
        if self.is_obsolete():
            raise ForwardAborted("the result of this forward is not needed any more")
        return self.attention(layer, query, keys_values, rule)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the keys and values of consecutive packed rows go."""

    row: int
    slot: int  # of the first row
    num_tokens: int


class RaggedAttention:
    """Attention of one forward, for all its layers.

    Everything that the layers share, including views of the cache, is made once.

    Args:
        cache: receives the new keys and values, and provides all others.
        placements: of the packed rows in order; rows after the last placement are padding.
        calls: which packed rows attend to what; rows in no call are padding.
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
        # Key heads come first, so that the tokens and heads of one call are contiguous query rows.
        shape = (num_kv_heads, num_rows, num_query_rows(group), head_dim)
        queries = torch.zeros(shape, dtype=cache.dtype, device=cache.device)
        self._query = queries[:, :, :group].transpose(0, 1)  # [R, H, G, D]
        out = torch.zeros((num_rows, num_kv_heads, group, head_dim), dtype=cache.dtype, device=cache.device)
        self._calls = [BOUND[call.form](call, cache, queries, out) for call in calls]
        self._trees = _tree_slots(cache, calls)
        self._out = out.view(num_rows, -1)

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, rule: ScoreRule) -> Tensor:
        """Write the new keys and values of one layer, then attend.

        Args:
            layer: index.
            query: [R, Hq, D], rotated.
            keys_values: [R, 2, H, D], keys rotated; those of padding are not written.
            rule: how the layer weighs what its tokens see.
        Returns: [R, Hq D], valid until the next layer; zeros for padding.
        """
        self._write(layer, keys_values[: self._num_tokens])
        # Into a buffer with a fixed layout: strides that follow the batch would change which kernel runs.
        self._query.copy_(query.view(self._query.shape))
        as_written = {row: slots[layer].clone() for row, slots in self._trees.items()}
        for call in self._calls:
            if call.laid_out is not None:  # put it into the slots that it would have if it were decoded
                [row] = call.rows
                slots = self._trees[row][layer][: len(call.laid_out.path)]
                torch.index_select(as_written[row], 0, call.laid_out.path, out=slots)
            call.attend(layer, rule)
        for row, content in as_written.items():
            self._trees[row][layer].copy_(content)
        return self._out


def _tree_slots(cache: RaggedCache, calls: Sequence[AttentionCall]) -> dict[int, tuple[Tensor, ...]]:
    """For each row with a branch that is laid out: the slots of its whole tree, one [T, 2, H, D] a layer."""
    branches = {call.row: branch for call in calls if (branch := call.laid_out) is not None}
    return {
        row: cache.places(row, branch.prefix_len, branch.prefix_len + branch.num_tokens)
        for row, branch in branches.items()
    }


def _writer(cache: RaggedCache, placements: Sequence[Placement]) -> Callable[[int, Tensor], object]:
    """A function that puts a layer's new keys and values [T, 2, H, D] where the placements say."""
    if len(placements) == 1:  # for one sequence a copy is cheaper than index_put
        only = placements[0]
        places = cache.places(only.row, only.slot, only.slot + only.num_tokens)
        return lambda layer, keys_values: places[layer].copy_(keys_values)
    rows, slots = _indices(placements, cache.device)
    return lambda layer, keys_values: cache.scatter(layer, rows, slots, keys_values)


def _indices(placements: Sequence[Placement], device: torch.device) -> tuple[Tensor, Tensor]:
    """[T] row and [T] slot of each packed row that is not padding."""
    rows = [each.row for each in placements for _ in range(each.num_tokens)]
    slots = [each.slot + token for each in placements for token in range(each.num_tokens)]
    return (
        torch.tensor(rows, dtype=torch.int64, device=device),
        torch.tensor(slots, dtype=torch.int64, device=device),
    )
