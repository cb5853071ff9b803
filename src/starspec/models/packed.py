"""What both runners do around their layers: check segments, form forwards, pack, run, and collect the output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Final, Self

import torch
from torch import Tensor

from starspec.cache.kv_cache import KVCache
from starspec.cache.ragged import RaggedCache, num_rows_within, row_bytes
from starspec.config import MAX_DRAFT_TOKENS, ModelConfig
from starspec.errors import CacheRangeError, ForwardAborted
from starspec.models.attention.mask import depths_of
from starspec.models.attention.plan import AttentionMode
from starspec.models.attention.ragged import Interruptible
from starspec.models.attention.scores import ScoreRule
from starspec.models.batch import PackedBatch, Piece, RowRange, build_batch, plan_forwards
from starspec.models.graphs.cuda import StepGraphs
from starspec.models.layers import LayerRange
from starspec.models.linear.interface import StepLinear
from starspec.models.runner import ForwardOutput, ModelInfo, Segment

FAST_NUMERICS: Final = "numerics are fast: a token's bits may depend on what it is batched with"


class FeatureTaps:
    """Collects the wanted hidden states of one forward as it passes through the layers.

    Args:
        layers: as for `ModelRunner.forward`.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = layers
        self._seen: dict[int, Tensor] = {}

    @property
    def is_open(self) -> bool:
        """Whether anything is wanted."""
        return bool(self._layers)

    def wants(self, layer: int) -> bool:
        return layer in self._layers

    def show(self, layer: int, hidden: Tensor) -> None:
        """Keep the hidden states [R, C] if they are wanted; the caller must not change them in place afterwards."""
        if self.wants(layer):
            self._seen[layer] = hidden

    def joined(self) -> Tensor | None:
        """[R, F] with padding, in the order of the layers; None if none is wanted."""
        return torch.cat([self._seen[layer] for layer in self._layers], dim=-1) if self._layers else None


class PackedRunner(ABC):
    """A `ModelRunner` that packs ragged segments into forwards of one flat row dimension.

    If it has only some layers, it is a `Stage`.

    Args:
        info: facts about the model.
        layers: those that it runs.
        cache: their keys and values.
        num_heads: Hq, query heads of a layer.
    """

    def __init__(self, info: ModelInfo, layers: LayerRange, cache: RaggedCache, num_heads: int) -> None:
        self._info = info
        self._layers = layers
        self._cache = cache
        self._num_heads = num_heads
        self._no_logits = torch.empty(0, info.vocab_size, dtype=cache.dtype, device=cache.device)
        self._no_hidden = torch.empty(0, info.hidden_size, dtype=cache.dtype, device=cache.device)
        self.rows = RowRange(lowest=1, highest=None)  # row counts of a forward; set by the numerics probe
        self.numerics_report = FAST_NUMERICS  # set by the numerics probe
        self.attention_mode = AttentionMode.FAST  # set by the numerics probe
        self.score_rules: Sequence[ScoreRule] = ()  # of each layer
        self.graphs: StepGraphs | None = None  # runs small forwards on accelerators

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def layers(self) -> LayerRange:
        return self._layers

    @property
    def cache(self) -> RaggedCache:
        return self._cache

    @property
    def num_heads(self) -> int:
        """Query heads of a layer."""
        return self._num_heads

    @property
    def is_invariant(self) -> bool:
        """Whether the probe showed that a token's bits do not depend on what it is batched with."""
        return self.attention_mode is not AttentionMode.FAST

    def with_fast_numerics(self) -> Self:
        """The same model over the same cache, with forwards that are neither padded nor split to preserve bits."""
        fast = copy(self)
        fast.rows, fast.attention_mode, fast.numerics_report = (
            RowRange(lowest=1, highest=None),
            AttentionMode.FAST,
            FAST_NUMERICS,
        )
        fast.graphs = self.graphs and self.graphs.of(fast.run)
        return fast

    @torch.inference_mode()
    def forward(
        self,
        segments: Sequence[Segment],
        feature_layers: Sequence[int] = (),
        *,
        hidden: Tensor | None = None,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ForwardOutput:
        """Run the layers over the new tokens of several rows; see `ModelRunner.forward`, and `Stage.forward` for parts.

        Args:
            segments: at most one for each row.
            feature_layers: as for `ModelRunner.forward`.
            hidden: as for `Stage.forward`.
            is_obsolete: asked before the attention of each layer, or before each forward that is launched as a whole.
        Raises: ForwardAborted once `is_obsolete` returns True. CacheRangeError if a segment does not fit into its row
            or two segments share a row. ValueError if a segment or `hidden` is malformed or a layer does not exist.
            After the latter two, nothing has been written.
        """
        check_segments(segments, self._cache)
        self._check_hidden(segments, hidden)
        outputs, first = [], 0
        for pieces in self._shares(segments):
            if is_obsolete is not None and self.graphs is not None and is_obsolete():
                raise ForwardAborted("the result of this forward is not needed any more")
            rows = slice(first, first + sum(piece.num_tokens for piece in pieces))
            first = rows.stop
            entering = None if hidden is None else hidden[rows]
            output = self._forward(pieces, feature_layers, entering, is_obsolete)
            outputs.append(_without_padding(output, rows.stop - rows.start))
        return self._joined(outputs)

    def _joined(self, outputs: Sequence[ForwardOutput]) -> ForwardOutput:
        """What several forwards gave, one after the other."""
        if len(outputs) == 1:
            return outputs[0]
        features = [each.features for each in outputs if each.features is not None]
        hidden = [each.hidden for each in outputs if each.hidden is not None]
        return ForwardOutput(
            torch.cat([self._no_logits, *(each.logits for each in outputs)]),
            torch.cat(features) if features else None,
            None if self._layers.is_last else torch.cat([self._no_hidden, *hidden]),
        )

    def _shares(self, segments: Sequence[Segment]) -> Iterator[list[Piece]]:
        """The pieces of each forward, one list after the other."""
        for pieces in plan_forwards(segments, self.rows):
            if self.attention_mode is AttentionMode.IN_STEPS and self.graphs is not None:
                yield from self.graphs.shares(pieces, self.rows) or [pieces]
            else:
                yield pieces

    def _forward(
        self,
        pieces: Sequence[Piece],
        feature_layers: Sequence[int],
        hidden: Tensor | None,
        is_obsolete: Callable[[], bool] | None,
    ) -> ForwardOutput:
        """Run some pieces together. Features and hidden states may include rows of padding."""
        if self.graphs is not None and self.attention_mode in (AttentionMode.FAST, AttentionMode.IN_STEPS):
            output = self.graphs.forward(pieces, self.rows, feature_layers)
            if output is not None:
                return output
        batch = build_batch(pieces, self._cache, self.rows, self._num_heads, self.attention_mode, hidden)
        if is_obsolete is not None:
            batch = replace(batch, attention=Interruptible(batch.attention, is_obsolete))
        return self.run(batch, feature_layers)

    @torch.inference_mode()
    def run(self, batch: PackedBatch, feature_layers: Sequence[int] = ()) -> ForwardOutput:
        """Run one packed batch.

        Returns: the logits that the batch wants, or without the last layer the hidden states [R, C]; features [R, F].
            The latter two are of all its rows, padding included.
        Raises: ValueError if there are no such features. Effects: those of the batch's attention.
        """
        self._check_layers(feature_layers)
        taps = FeatureTaps(feature_layers)
        computed = self._run(batch, taps)
        if self._layers.is_last:
            return ForwardOutput(computed[: batch.num_logits], taps.joined())
        return ForwardOutput(self._no_logits, taps.joined(), computed)

    @property
    @abstractmethod
    def step_linears(self) -> list[StepLinear]:
        """The linears of one decoding step, in the order in which they run."""

    @abstractmethod
    def _run(self, batch: PackedBatch, taps: FeatureTaps) -> Tensor:
        """Write keys and values, show each layer's input to the taps, and compute what comes out.

        Returns: logits [len(batch.logit_rows), V]; without the last layer, hidden states [R, C].
        """

    def _check_layers(self, feature_layers: Sequence[int]) -> None:
        first, last = self._layers.start, self._layers.end - (not self._layers.is_last)
        unknown = [layer for layer in feature_layers if not first <= layer <= last]
        if unknown:
            raise ValueError(f"{self._info.name} has hidden states {first} to {last}, not {unknown[0]}")

    def _check_hidden(self, segments: Sequence[Segment], hidden: Tensor | None) -> None:
        if self._layers.is_first:
            if hidden is not None:
                raise ValueError("the first layers begin with token ids, not with hidden states")
            return
        wanted = (sum(segment.num_new for segment in segments), self._info.hidden_size)
        if hidden is None or tuple(hidden.shape) != wanted or hidden.dtype != self._cache.dtype:
            found = "none" if hidden is None else f"{list(hidden.shape)} {hidden.dtype}"
            raise ValueError(
                f"layers {self._layers} need hidden states {list(wanted)} {self._cache.dtype}, not {found}"
            )


def _without_padding(output: ForwardOutput, num_tokens: int) -> ForwardOutput:
    features, hidden = output.features, output.hidden
    return ForwardOutput(
        output.logits,
        None if features is None else features[:num_tokens],
        None if hidden is None else hidden[:num_tokens],
    )


def check_segments(segments: Sequence[Segment], cache: KVCache) -> None:
    """Refuse segments that cannot be forwarded together.

    Raises: CacheRangeError if one does not fit into its row or two share a row; ValueError if one is malformed.
    """
    for segment in segments:
        num_tokens, num_new = len(segment.token_ids), segment.num_new
        if not 1 <= num_new <= num_tokens or not 0 <= segment.num_logits <= num_new:
            raise ValueError(f"a segment of {num_new} new tokens cannot give {segment.num_logits} logits")
        depths_of(num_tokens, segment.parents)  # raises if a parent does not come first
        cache.check_fits(segment.row, num_tokens)
    if len({segment.row for segment in segments}) < len(segments):
        raise CacheRangeError("two segments of one forward share a row")


def check_cache(config: ModelConfig, max_model_len: int, num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Check that the cache which `make_cache` will make fits into memory. It needs no weights.

    Returns: the bytes that its rows can come to use.
    Raises: as `make_cache`.
    """
    max_len, dtype = max_model_len + MAX_DRAFT_TOKENS, getattr(torch, config.dtype)
    num_rows = num_rows_within(
        config.kv_budget_bytes,
        num_layers,
        config.num_rows,
        max_len,
        num_kv_heads,
        head_dim,
        dtype=dtype,
        device=config.device,
    )
    return num_rows * row_bytes(num_layers, max_len, num_kv_heads, head_dim, dtype=dtype)


def make_cache(
    model: Any, config: ModelConfig, info: ModelInfo, *, num_layers: int, num_kv_heads: int, head_dim: int
) -> RaggedCache:
    """Make the cache for a model. A row has room for the longest sequence and for the longest proposal behind it.

    Raises: ConfigError if it does not fit into memory (see `num_rows_within`).
    """
    return RaggedCache.within(
        config.kv_budget_bytes,
        num_layers=num_layers,
        num_rows=config.num_rows,
        max_len=info.max_model_len + MAX_DRAFT_TOKENS,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=model.dtype,
        device=model.device,
    )
