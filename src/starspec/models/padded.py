"""A forward over a left-padded rectangle, as EqSpec, ExSpec and rollback run it, with the layers of the ragged path.

    columns    0 . . . . . width | width + T
    row 0      p p p c c c       | r n n n        positions of new tokens: 3 4 5 6
    row 1      c c c c c c       | r n . .                                 6 7 - -

Positions start at 0 with a row's first content token, so padding on the left changes nothing. There may also be padding
behind a row's new tokens, because proposals differ in size. Masks depend on column numbers only, never on token ids: a
pad token may have any id, even that of eos. The root r of each segment is the last token of the round before; this
forward computes its keys and values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from starspec.cache.padded import Movement, PaddedCache, Rectangle
from starspec.models.attention.mask import depths_of, visible_slots
from starspec.models.attention.scores import Masks, ScoreRule, attended
from starspec.models.batch import PackedBatch
from starspec.models.packed import PackedRunner, check_segments
from starspec.models.runner import ForwardOutput, ModelInfo, Segment
from starspec.stats import BatchStats

PAD_TOKEN_ID: Final = 0  # any id will do: no token attends to padding


class PaddedRunner:
    """Runs the segments of each forward as one rectangle, over a cache of its own.

    Args:
        runner: provides the layers; its own cache stays empty.
        stats: receives the cost of bringing sequences together. Forwards without logits are prefill and do not count.
        clock: seconds, monotonic.
    """

    def __init__(self, runner: PackedRunner, stats: BatchStats, clock: Callable[[], float] = time.perf_counter) -> None:
        self._runner = runner
        self._stats = stats
        self._clock = clock
        self._cache = PaddedCache(runner.cache)

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def cache(self) -> PaddedCache:
        return self._cache

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        """As `BatchRunner.forward`. Effects: may also move keys and values of the rows into another rectangle."""
        check_segments(segments, self._cache)
        assert not any(segment.num_forwarded for segment in segments), "targets forward whole proposals"
        num_new = max(len(segment.token_ids) for segment in segments)
        started_s = self._clock()
        rectangle, movement = self._cache.gather([segment.row for segment in segments], num_new)
        gathered_s = self._clock()
        batch = pad_batch(segments, rectangle, num_new, self._runner.num_heads)
        padded_s = self._clock()
        if any(segment.num_logits for segment in segments):
            self._count(movement, gathered_s - started_s, padded_s - gathered_s)
        output = self._runner.run(batch, feature_layers)
        if output.features is None:
            return output
        return ForwardOutput(output.logits, output.features[_token_rows(segments, num_new)])

    def _count(self, movement: Movement, gather_s: float, pad_s: float) -> None:
        """Add the cost of one round.

        Without realignment, positions and masks count as a part of the forward, as they do on the ragged path.
        """
        stats = self._stats
        if movement is Movement.REALIGNMENT:
            stats.realign_pad_s += pad_s
            stats.realign_kv_s += gather_s
            stats.num_realigned_rounds += 1
        else:
            stats.copy_s += gather_s


class RectangleAttention:
    """Attention of one forward over one rectangle.

    Args:
        rectangle: B aligned sequences, with T free columns.
        mask: additive [B, 1, G T, width + T], for G query heads that share a key head.
        num_heads: Hq.
    """

    def __init__(self, rectangle: Rectangle, mask: Tensor, num_heads: int) -> None:
        self._by_layer = rectangle.keys_values.unbind(0)  # [2, B, H, C, D] each
        self._width, self._num_columns = rectangle.width, mask.shape[3]
        self._masks = Masks(mask, self._num_columns, mask)
        self._num_heads = num_heads

    def __call__(self, layer: int, query: Tensor, keys_values: Tensor, rule: ScoreRule) -> Tensor:
        """As `BatchAttention`, with R = B T: the tokens of each sequence are consecutive. Effects: the T columns."""
        stored = self._by_layer[layer]
        _, num_rows, num_kv_heads, _, head_dim = stored.shape
        group = self._num_heads // num_kv_heads
        new = keys_values.view(num_rows, -1, 2, num_kv_heads, head_dim)  # [B, T, 2, H, D]
        stored[:, :, :, self._width : self._num_columns] = new.permute(2, 0, 3, 1, 4)
        # heads that share a key head become its query rows, so that no keys are repeated
        heads = query.view(num_rows, -1, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)  # [B, H, G, T, D]
        keys, values = stored[:, :, :, : self._num_columns]
        if rule.sinks is not None:  # [H, G T, 1]
            of_heads = rule.sinks.view(num_kv_heads, group, 1)
            rule = replace(rule, sinks=of_heads.repeat_interleave(heads.shape[3], dim=1))
        flat = heads.reshape(num_rows, num_kv_heads, -1, head_dim)
        out = attended(flat, keys, values, self._masks.within(rule.window), rule)
        out = out.view(num_rows, num_kv_heads, group, -1, head_dim).permute(0, 3, 1, 2, 4)  # [B, T, H, G, D]
        return out.reshape(len(query), -1)


def pad_batch(segments: Sequence[Segment], rectangle: Rectangle, num_new: int, num_heads: int) -> PackedBatch:
    """Pad the new tokens of all sequences to one number, and make positions and masks.

    Args:
        segments: one for each sequence.
        rectangle: the aligned rows of these segments, in their order.
        num_new: T, tokens of the longest segment.
        num_heads: Hq.
    """
    device, width = rectangle.keys_values.device, rectangle.width
    token_ids = torch.full((len(segments), num_new), PAD_TOKEN_ID)
    positions = torch.zeros(len(segments), num_new, dtype=torch.int64)
    logit_rows: list[int] = []
    for index, segment in enumerate(segments):
        num_tokens, length = len(segment.token_ids), width - rectangle.starts[index]
        token_ids[index, :num_tokens] = torch.tensor(segment.token_ids)
        positions[index, :num_tokens] = length + torch.tensor(depths_of(num_tokens, segment.parents))
        end = index * num_new + num_tokens
        logit_rows += range(end - segment.num_logits, end)
    group = num_heads // rectangle.keys_values.shape[3]
    mask = padded_mask(segments, rectangle.starts, width, num_new).repeat(1, group, 1).unsqueeze(1)
    dtype = rectangle.keys_values.dtype
    additive = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf")).to(device)
    return PackedBatch(
        token_ids=token_ids.view(-1).to(device),
        positions=positions.view(-1).to(device),
        attention=RectangleAttention(rectangle, additive, num_heads),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        num_logits=len(logit_rows),
    )


def padded_mask(segments: Sequence[Segment], starts: Sequence[int], width: int, num_new: int) -> Tensor:
    """What each new token sees: bool [B, T, width + T].

    starts = (1, 0), width 3, a chain of 2 and a chain of 1:

        row 0    . 1 1 | 1 .        row 1    1 1 1 | 1 .
                 . 1 1 | 1 1                 . . . | . 1     padding sees itself: a softmax over nothing is NaN
    """
    mask = torch.zeros(len(segments), num_new, width + num_new, dtype=torch.bool)
    mask[:, :, width:] = torch.eye(num_new, dtype=torch.bool)
    for index, (segment, start) in enumerate(zip(segments, starts, strict=True)):
        num_tokens = len(segment.token_ids)
        mask[index, :num_tokens, start : width + num_tokens] = visible_slots(width - start, num_tokens, segment.parents)
    return mask


def _token_rows(segments: Sequence[Segment], num_new: int) -> list[int]:
    """The rows of a padded batch that hold tokens."""
    return [index * num_new + token for index, each in enumerate(segments) for token in range(len(each.token_ids))]
