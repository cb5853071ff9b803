"""Prompts that many contenders answer: forwarded once for each layout of keys and values, and copied from then on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from starspec.cache.sequence_rows import LocalRows, SequenceRows
from starspec.models.runner import BatchRunner, ForwardOutput, ModelInfo, Segment


class KnownPrompts:
    """Keys and values of prompts that were read. Unbounded: whoever makes it forgets it before they are too many."""

    def __init__(self) -> None:
        self._held: dict[tuple[type[SequenceRows], tuple[int, ...]], Tensor] = {}  # by the tokens up to a chunk's end

    def reading_once(self, runner: BatchRunner) -> BatchRunner:
        """The runner, but for chunks of prompts that another runner of the same model and layout has read.

        One whose keys and values lie elsewhere reads every prompt itself.
        """
        return _ReadingOnce(runner, runner.cache, self._held) if isinstance(runner.cache, LocalRows) else runner


class _ReadingOnce:
    """A chunk of a prompt is a forward of one sequence that wants nothing but its keys and values."""

    def __init__(
        self, runner: BatchRunner, rows: LocalRows, held: dict[tuple[type[SequenceRows], tuple[int, ...]], Tensor]
    ) -> None:
        self._runner = runner
        self._rows = rows  # of its cache
        self._held = held
        self._read: dict[int, tuple[int, ...]] = {}  # row -> what it has read of its prompt

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def cache(self) -> SequenceRows:
        return self._runner.cache

    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        if len(segments) > 1 or segments[0].num_logits or feature_layers:
            return self._runner.forward(segments, feature_layers)
        self._read_chunk(segments[0])
        return ForwardOutput(torch.empty(0, self.info.vocab_size))

    def _read_chunk(self, chunk: Segment) -> None:
        row, num_tokens = chunk.row, len(chunk.token_ids)
        tokens = (*self._read.get(row, ())[: self.cache.lengths[row]], *chunk.token_ids)
        self._read[row] = tokens
        key = (type(self.cache), tokens)
        if key in self._held:
            self._rows.behind(row, num_tokens).copy_(self._held[key])
        else:
            self._runner.forward([chunk])
            self._held[key] = self._rows.behind(row, num_tokens).clone()
