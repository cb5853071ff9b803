"""Segments packed into forwards: which tokens run together, where their keys and values go, and what they attend to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.attention.call import AttentionCall
from starspec.models.attention.mask import depths_of, is_chain
from starspec.models.attention.plan import AttentionMode, joined, plan_calls
from starspec.models.attention.ragged import BatchAttention, Placement, RaggedAttention
from starspec.models.loading.device import is_accelerator
from starspec.models.runner import Segment

MAX_DECODE_TOKENS: Final = 16  # a longer chain that asks for at most one row of logits, or is scored, is prefill


@dataclass(frozen=True, slots=True)
class RowRange:
    """Row counts of a forward within which every row gets the same bits, whatever the other rows are."""

    lowest: int  # smaller forwards are padded to this
    highest: int | None  # larger forwards are split; None = never


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `first..last` of a segment: all its new tokens, unless they are more than one forward may have."""

    segment: Segment
    first: int
    last: int  # exclusive

    @property
    def num_tokens(self) -> int:
        return self.last - self.first

    @property
    def is_prompt(self) -> bool:
        """Whether it is prefill: it runs alone, at any width, so its boundaries depend only on its sequence."""
        segment = self.segment
        is_long = segment.num_new > MAX_DECODE_TOKENS and segment.num_forwarded == 0
        return is_long and (segment.num_logits <= 1 or segment.is_scored) and is_chain(segment.parents)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One forward: everything that depends on the segments, computed once and used by every layer.

    A row of the batch is a token, or padding that does not influence the other rows.
    """

    token_ids: Tensor  # [R] int64
    positions: Tensor  # [R] int64
    attention: BatchAttention
    logit_rows: Tensor  # rows whose logits are wanted, then padding up to the lowest row count
    num_logits: int  # rows wanted, without the padding
    hidden: Tensor | None = None  # [R, C] from the stage before; None = the tokens are embedded here


def plan_forwards(segments: Sequence[Segment], rows: RowRange) -> list[list[Piece]]:
    """Distribute the segments over forwards, in order: each prefill alone, the others together up to `rows.highest`."""
    forwards: list[list[Piece]] = []
    room = 0
    for segment in segments:
        for piece in _pieces(segment, rows.highest):
            if piece.is_prompt or piece.num_tokens > room:
                forwards.append([])
                room = rows.highest or 1 << 30
            forwards[-1].append(piece)
            room = 0 if piece.is_prompt else room - piece.num_tokens
    return forwards


def build_batch(
    pieces: Sequence[Piece],
    cache: RaggedCache,
    rows: RowRange,
    num_heads: int,
    mode: AttentionMode,
    hidden: Tensor | None = None,
) -> PackedBatch:
    """Pack the pieces of one forward: their tokens in order, then padding up to the lowest row count.

    Args:
        pieces: what the forward computes.
        cache: the keys and values.
        rows: the row counts that the forward may have.
        num_heads: Hq, query heads of a layer.
        mode: how tokens outside of prefills attend.
        hidden: [tokens, C] from the stage before, for these pieces; None = the tokens are embedded here.
    Raises: ValueError if a segment's parents are not in topological order.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    logit_rows: list[int] = []
    placements: list[Placement] = []
    calls: list[AttentionCall] = []
    for piece in pieces:
        segment, new_tokens = piece.segment, range(piece.first, piece.last)
        prefix_len, start = cache.lengths[segment.row], len(token_ids)
        depths = depths_of(len(segment.token_ids), segment.parents)
        token_ids += segment.token_ids[piece.first : piece.last]
        positions += [prefix_len + depths[token] for token in new_tokens]
        first_logit = len(segment.token_ids) - segment.num_logits
        logit_rows += [start + token - piece.first for token in new_tokens if token >= first_logit]
        placements.append(Placement(segment.row, prefix_len + piece.first, piece.num_tokens))
        calls += plan_calls(
            segment.row,
            start,
            prefix_len,
            parents=segment.parents,
            new_tokens=new_tokens,
            is_prompt=piece.is_prompt,
            mode=mode,
            group=num_heads // cache.keys[0].shape[1],
            like=cache.keys[0],
        )
    if mode in (AttentionMode.FAST, AttentionMode.TOGETHER):
        calls = joined(calls, are_calls_dear=is_accelerator(cache.device))
    num_logits = len(logit_rows)
    padding = [0] * max(0, rows.lowest - len(token_ids))
    logit_padding = [0] * (max(0, rows.lowest - num_logits) if num_logits else 0)
    to_tensor = partial(torch.tensor, dtype=torch.int64, device=cache.device)
    num_rows = len(token_ids) + len(padding)
    attention = RaggedAttention(cache, placements, calls, num_rows=num_rows, num_heads=num_heads)
    return PackedBatch(
        token_ids=to_tensor(token_ids + padding),
        positions=to_tensor(positions + padding),
        attention=attention,
        logit_rows=to_tensor(logit_rows + logit_padding),
        num_logits=num_logits,
        hidden=hidden if hidden is None else F.pad(hidden, (0, 0, 0, len(padding))),
    )


def _pieces(segment: Segment, highest: int | None) -> Iterator[Piece]:
    whole = Piece(segment, segment.num_forwarded, len(segment.token_ids))
    if highest is None or whole.is_prompt or whole.num_tokens <= highest:
        yield whole
        return
    for first in range(whole.first, whole.last, highest):
        yield Piece(segment, first, min(first + highest, whole.last))
