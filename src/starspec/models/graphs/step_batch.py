"""Forwards of fixed shapes that can be recorded as CUDA graphs: all that varies is in tensors that stay in place.

N sequences have T tokens each. Every token is a batch entry of attention, over a copy of the S slots that it reads: the
prefix, then the token's own path in order. So it reads exactly what it would read if it were decoded, whatever the rest
of the tree is. The copy costs little where reading is not the bottleneck.

    cache row     p p p a b c d        a, b: a chain; c, d are children of a        path of d: a d
    read for d    p p p a d . . .      the rest is masked

A forward that is smaller than its shape is filled up by repetition: a segment repeats its last token, a forward its
last segment. So padding writes to a slot the same values that are written there anyway, and needs no room of its own:

    segments      a b c │ e            N = 2, T = 4           a b c c
                                                              e e e e
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.attention.mask import depths_of, is_chain
from starspec.models.attention.scores import HIDDEN, Masks, ScoreRule, attended
from starspec.models.batch import PackedBatch, Piece, RowRange

NUMS_ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
NUMS_TOKENS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 65, 96, 128, 192, 256)  # 65: 64 drafts and their root
MIN_SLOTS: Final = 256  # to read fewer takes the same time
MAX_PACKED_ROWS: Final = 256  # of a forward; a wider one has enough work to hide its launches
MAX_READ_BYTES: Final = 1 << 29  # copied keys and values that all tokens of a step read in one layer
MAX_TREE_LEN: Final = 128  # tokens of a tree, including those of earlier forwards


class StepShape(NamedTuple):
    """What all forwards of one kind have in common."""

    num_rows: int  # N
    num_tokens: int  # T
    num_slots: int  # S
    num_logits: int  # rows of the LM head: none, about one for each sequence, or all

    @property
    def num_packed_rows(self) -> int:
        return self.num_rows * self.num_tokens


def step_shape(pieces: Sequence[Piece], cache: RaggedCache, rows: RowRange) -> StepShape | None:
    """The shape of a forward; None if it is too large, or a prefill that must have a width of its own.

    Args:
        pieces: what the forward computes.
        cache: the keys and values.
        rows: the row counts that the forward may have. If there is an upper limit, bits are preserved, and a single
            token always has a shape.
    """
    for piece in pieces:
        if len(piece.segment.token_ids) > MAX_TREE_LEN and not is_chain(piece.segment.parents):
            return None
        if piece.is_prompt and rows.highest is not None:
            return None
    most = MAX_PACKED_ROWS if rows.highest is None else min(rows.highest, MAX_PACKED_ROWS)
    num_rows, num_tokens = len(pieces), max(piece.num_tokens for piece in pieces)
    wide = _at_least(num_rows, NUMS_ROWS)
    long = _at_least(max(num_tokens, -(-rows.lowest // wide)), NUMS_TOKENS)
    if wide * long > most:  # then without rounding up
        wide, long = num_rows, max(num_tokens, -(-rows.lowest // num_rows))
    num_slots = max(cache.lengths[piece.segment.row] + piece.last for piece in pieces)
    in_powers = min(max(MIN_SLOTS, 1 << (num_slots - 1).bit_length()), cache.keys[0].shape[2])
    is_one_token = num_rows == num_tokens == 1
    is_read_at_once = wide * long * in_powers * num_slot_bytes(cache) <= MAX_READ_BYTES
    if wide * long > most or not (is_read_at_once or is_one_token):
        return None
    num_logits = sum(wanted_logits(piece) for piece in pieces)
    few = max(wide, rows.lowest)
    return StepShape(wide, long, in_powers, 0 if num_logits == 0 else few if num_logits <= few else wide * long)


def num_slot_bytes(cache: RaggedCache) -> int:
    """Bytes of one slot of one layer: a key and a value of each head."""
    keys = cache.keys[0]
    return 2 * keys.shape[1] * keys.shape[3] * keys.element_size()


def wanted_logits(piece: Piece) -> int:
    """How many of the tokens whose logits the segment wants are in this piece."""
    first_logit = len(piece.segment.token_ids) - piece.segment.num_logits
    return max(0, piece.last - max(piece.first, first_logit))


class StepBatch:
    """The tensors of one shape, and the packed batch that uses them.

    Args:
        shape: of the forwards.
        cache: the keys and values.
        num_heads: Hq, query heads of a layer.
    """

    def __init__(self, shape: StepShape, cache: RaggedCache, num_heads: int) -> None:
        self._shape, self._cache = shape, cache
        num_packed = shape.num_packed_rows  # R
        self._numbers = torch.zeros(7, num_packed, dtype=torch.int64, device=cache.device)
        token_ids, positions, rows, slots, prefix_lens, path_lens, logit_rows = self._numbers
        self._in_order = torch.arange(MAX_TREE_LEN, dtype=torch.int16)
        self._paths = torch.zeros(num_packed, MAX_TREE_LEN, dtype=torch.int16, device=cache.device)
        self._attention = StepAttention(shape, cache, num_heads, rows, slots)
        self._prefix_lens, self._path_lens = prefix_lens, path_lens
        self.packed = PackedBatch(
            token_ids, positions, self._attention, logit_rows[: shape.num_logits], num_logits=shape.num_logits
        )

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Take in a forward of this shape. Effects: the tensors that `packed` uses, complete once `prepare` has run."""
        num_rows, num_tokens = self._shape.num_rows, self._shape.num_tokens
        columns = token_ids, positions, rows, slots, prefix_lens, path_lens, logit_rows = _lists(7)
        paths = self._in_order.repeat(self._shape.num_packed_rows, 1)
        for index, piece in enumerate([*pieces, *[pieces[-1]] * (num_rows - len(pieces))]):
            segment, start = piece.segment, index * num_tokens
            prefix_len = self._cache.lengths[segment.row]
            depths = depths_of(len(segment.token_ids), segment.parents)
            tokens = [*range(piece.first, piece.last), *[piece.last - 1] * (num_tokens - piece.num_tokens)]
            token_ids += [segment.token_ids[token] for token in tokens]
            positions += [prefix_len + depths[token] for token in tokens]
            rows += [segment.row] * num_tokens
            slots += [prefix_len + token for token in tokens]
            prefix_lens += [prefix_len] * num_tokens
            path_lens += [depths[token] + 1 for token in tokens]
            if segment.parents is not None and not is_chain(segment.parents):
                _write_paths(paths[start : start + num_tokens], tokens, segment.parents)
            if index < len(pieces):
                logit_rows += range(start + piece.num_tokens - wanted_logits(piece), start + piece.num_tokens)
        logit_rows += [0] * (self._shape.num_packed_rows - len(logit_rows))
        self._numbers.copy_(torch.tensor(columns, dtype=torch.int64))
        self._paths.copy_(paths)

    def prepare(self) -> None:
        """Compute which slots each token reads, without waiting for the device. Part of each recorded forward."""
        self._attention.see(self._prefix_lens, self._paths.long(), self._path_lens)


class StepAttention:
    """`BatchAttention` for forwards of one shape.

    Args:
        shape: of the forwards.
        cache: the keys and values.
        num_heads: Hq.
        rows, slots: [R], where new keys and values go.
    """

    def __init__(self, shape: StepShape, cache: RaggedCache, num_heads: int, rows: Tensor, slots: Tensor) -> None:
        num_packed, num_kv_heads = shape.num_packed_rows, cache.keys[0].shape[1]
        self._cache = cache
        self._rows, self._slots = rows, slots
        self._by_head = (num_packed, num_kv_heads, num_heads // num_kv_heads, -1)  # R, H, G, D
        self._all_slots = torch.arange(shape.num_slots, device=cache.device)
        self._read = torch.zeros(num_packed, shape.num_slots, dtype=torch.int64, device=cache.device)
        self._mask = torch.zeros(num_packed, 1, 1, shape.num_slots, dtype=cache.dtype, device=cache.device)
        self._masks = Masks(self._mask, shape.num_slots, self._mask)

    def see(self, prefix_lens: Tensor, paths: Tensor, path_lens: Tensor) -> None:
        """Set which slots each token reads, and in which order.

        Args:
            prefix_lens: [R].
            paths: [R, MAX_TREE_LEN] slots behind the prefix, ancestors first; a longer chain continues in order.
            path_lens: [R]; entries of `paths` behind them are ignored.
        """
        prefix_lens = prefix_lens.unsqueeze(1)
        behind = self._all_slots - prefix_lens  # [R, S]
        on_path = paths.gather(1, behind.clamp(0, MAX_TREE_LEN - 1)) + prefix_lens
        is_hidden = behind >= path_lens.unsqueeze(1)
        is_in_order = (behind < 0) | (behind >= MAX_TREE_LEN) | is_hidden
        self._read.copy_(torch.where(is_in_order, self._all_slots, on_path))
        self._mask.zero_().masked_fill_(is_hidden[:, None, None], HIDDEN)
        self._masks = Masks(self._mask, len(self._all_slots), self._mask)  # those with a window follow from it

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, rule: ScoreRule) -> Tensor:
        """As `BatchAttention`."""
        self._cache.scatter(layer, self._rows, self._slots, keys_values)
        read = self._cache.gather(layer, self._rows.unsqueeze(1), self._read)  # [R, S, 2, H, D]
        keys, values = (each.transpose(1, 2) for each in read.unbind(2))  # [R, H, S, D]
        if rule.sinks is not None:
            rule = replace(rule, sinks=rule.sinks.view(*self._by_head[1:3], 1))
        mask = self._masks.within(rule.window)
        out = attended(query.view(self._by_head), keys, values, mask, rule)  # [R, H, G, D]
        return out.reshape(len(query), -1)


def _write_paths(paths: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> None:
    """Effects: each row of `paths` (int16, on the CPU) begins with the token's ancestors and the token itself."""
    for row, token in zip(paths.numpy(), tokens, strict=True):
        path = [token]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        row[: len(path)] = path[::-1]


def _at_least(number: int, steps: Sequence[int]) -> int:
    """The first of the steps that is not smaller than `number`, or `number` itself if all are smaller."""
    index = bisect_left(steps, number)
    return steps[index] if index < len(steps) else number


def _lists(num: int) -> tuple[list[int], ...]:
    return tuple([] for _ in range(num))
