"""Prompts that several methods answer: prefilled once for each cache layout, copied afterwards."""

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
    """The cache content of one prefill chunk."""

    content: Tensor  # keys and values
    features: Tensor | None  # of its tokens, [T, F], if they were asked for
    seconds: float  # that its forward took

    @property
    def num_bytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in (self.content, self.features) if each is not None)


ChunkKey = tuple[type[KVCache], tuple[int, ...], tuple[int, ...]]
"""A cache layout, the tokens up to the end of the chunk, and the layers whose features are known."""


class KnownPrompts:
    """Keys and values of prefilled prompts. It has no bound: the owner drops it before it grows too large."""

    def __init__(self) -> None:
        self.saved_s = 0.0  # seconds that copies have saved so far
        self._held: dict[ChunkKey, _Chunk] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.num_bytes for chunk in self._held.values())

    def prefilling_once(self, runner: BatchRunner) -> BatchRunner:
        """The runner, but it copies prompt chunks that a runner of the same model and layout has prefilled.

        A runner whose keys and values lie in another process prefills every prompt itself.
        """
        return _PrefillingOnce(runner, runner.cache, self) if isinstance(runner.cache, LocalRows) else runner

    def prefill_chunk(
        self, runner: BatchRunner, rows: LocalRows, chunk: Segment, tokens: tuple[int, ...], layers: tuple[int, ...]
    ) -> Tensor | None:
        """Forward the chunk, or copy it if another runner has prefilled it.

        Args:
            rows: of the runner's cache.
            tokens: of the row, up to the end of the chunk.
            layers: whose features are wanted.
        Returns: the features, if any are wanted.
        """
        key, started_s = (type(runner.cache), tokens, layers), time.perf_counter()
        if copied := self._held.get(key):
            rows.behind(chunk.row, len(chunk.token_ids)).copy_(copied.content)
            self.saved_s += copied.seconds - (time.perf_counter() - started_s)
            return copied.features
        features = runner.forward([chunk], layers).features
        seconds = time.perf_counter() - started_s
        self._held[key] = _Chunk(rows.behind(chunk.row, len(chunk.token_ids)).clone(), features, seconds)
        return features


class _PrefillingOnce:
    """Recognises a prefill chunk: a forward of one sequence that asks for no logits."""

    def __init__(self, runner: BatchRunner, rows: LocalRows, known: KnownPrompts) -> None:
        self._runner = runner
        self._rows = rows  # of its cache
        self._known = known
        self._prefilled: dict[int, tuple[int, ...]] = {}  # row -> the prompt tokens that it holds

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def cache(self) -> KVCache:
        return self._runner.cache

    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        if len(segments) > 1 or segments[0].num_logits:
            return self._runner.forward(segments, feature_layers)
        features = self._prefill_chunk(segments[0], tuple(feature_layers))
        return ForwardOutput(torch.empty(0, self.info.vocab_size), features)

    def _prefill_chunk(self, chunk: Segment, layers: tuple[int, ...]) -> Tensor | None:
        tokens = (*self._prefilled.get(chunk.row, ())[: self.cache.lengths[chunk.row]], *chunk.token_ids)
        self._prefilled[chunk.row] = tokens
        return self._known.prefill_chunk(self._runner, self._rows, chunk, tokens, layers)
