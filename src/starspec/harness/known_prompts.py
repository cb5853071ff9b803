"""Prompts that many contenders answer: forwarded once for each layout of keys and values, and copied from then on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from starspec.cache.kv_cache import KVCache, LocalRows
from starspec.models.runner import BatchRunner, ForwardOutput, ModelInfo, Segment


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What the last tokens of a prompt, or of its beginning, left in a cache."""

    content: Tensor  # keys and values
    seconds: float  # that reading took


ChunkKey = tuple[type[KVCache], tuple[int, ...]]
"""A layout, and the tokens up to a chunk's end."""


class KnownPrompts:
    """Keys and values of prompts that were read. Unbounded: whoever makes it forgets it before they are too many."""

    def __init__(self) -> None:
        self.saved_s = 0.0  # what copies instead of forwards have saved so far
        self._held: dict[ChunkKey, _Chunk] = {}

    @property
    def num_bytes(self) -> int:
        """What is held."""
        return sum(chunk.content.numel() * chunk.content.element_size() for chunk in self._held.values())

    def reading_once(self, runner: BatchRunner) -> BatchRunner:
        """The runner, but for chunks of prompts that another runner of the same model and layout has read.

        One whose keys and values lie elsewhere reads every prompt itself.
        """
        return _ReadingOnce(runner, runner.cache, self) if isinstance(runner.cache, LocalRows) else runner

    def read_chunk(self, runner: BatchRunner, rows: LocalRows, chunk: Segment, tokens: tuple[int, ...]) -> None:
        """Forward the chunk, or copy what another runner's forward of it left.

        Args:
            rows: of the runner's cache.
            tokens: the row's, up to the chunk's end.
        """
        key, started_s = (type(runner.cache), tokens), time.perf_counter()
        if chunk_read := self._held.get(key):
            rows.behind(chunk.row, len(chunk.token_ids)).copy_(chunk_read.content)
            self.saved_s += chunk_read.seconds - (time.perf_counter() - started_s)
            return
        runner.forward([chunk])
        seconds = time.perf_counter() - started_s
        self._held[key] = _Chunk(rows.behind(chunk.row, len(chunk.token_ids)).clone(), seconds)


class _ReadingOnce:
    """A chunk of a prompt is a forward of one sequence that wants nothing but its keys and values."""

    def __init__(self, runner: BatchRunner, rows: LocalRows, known: KnownPrompts) -> None:
        self._runner = runner
        self._rows = rows  # of its cache
        self._known = known
        self._read: dict[int, tuple[int, ...]] = {}  # row -> what it has read of its prompt

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def cache(self) -> KVCache:
        return self._runner.cache

    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        if len(segments) > 1 or segments[0].num_logits or feature_layers:
            return self._runner.forward(segments, feature_layers)
        self._read_chunk(segments[0])
        return ForwardOutput(torch.empty(0, self.info.vocab_size))

    def _read_chunk(self, chunk: Segment) -> None:
        tokens = (*self._read.get(chunk.row, ())[: self.cache.lengths[chunk.row]], *chunk.token_ids)
        self._read[chunk.row] = tokens
        self._known.read_chunk(self._runner, self._rows, chunk, tokens)
