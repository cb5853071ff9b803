"""What both runners do around their layers: check, share out, pack, run, gather."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from starspec.cache.mask import depths_of
from starspec.cache.ragged import RaggedCache
from starspec.errors import CacheRangeError
from starspec.models.batch import RaggedBatch, RowRange, build_batch, plan_forwards
from starspec.models.linear import StepLinear
from starspec.models.runner import ModelInfo, Segment


class PackedRunner(ABC):
    """A `ModelRunner` that packs ragged segments into forwards of one flat row dimension.

    Args:
        info: what others need to know of the model.
        cache: the keys and values.
        num_heads: Hq, query heads of a layer.
        vocab_size: V, columns of the logits.
    """

    def __init__(self, info: ModelInfo, cache: RaggedCache, num_heads: int, vocab_size: int) -> None:
        self._info = info
        self._cache = cache
        self._num_heads = num_heads
        self._no_logits = torch.empty(0, vocab_size, dtype=cache.dtype, device=cache.device)
        self.rows = RowRange(lowest=1, highest=None)  # row counts of a forward; set by the numerics probe
        self.numerics_report = "numerics are fast: a token's bits may depend on what it is batched with"
        self.is_invariant = False  # whether the probe showed that they do not

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def cache(self) -> RaggedCache:
        return self._cache

    @property
    def num_heads(self) -> int:
        """Query heads of a layer."""
        return self._num_heads

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Run the model over the new tokens of several rows; see `ModelRunner.forward`.

        Raises: CacheRangeError if a segment does not fit its row or two segments share one; ValueError for a
            segment that is malformed in itself. Nothing was written then.
        """
        self._check(segments)
        logits = []
        for pieces in plan_forwards(segments, self.rows):
            batch = build_batch(pieces, self._cache, self.rows, self._num_heads, in_order=self.is_invariant)
            logits.append(self._run(batch)[: batch.num_logits])
        return logits[0] if len(logits) == 1 else torch.cat([self._no_logits, *logits])

    @property
    @abstractmethod
    def step_linears(self) -> list[StepLinear]:
        """The linears of one step, in the order in which they run."""

    @abstractmethod
    def _run(self, batch: RaggedBatch) -> Tensor:
        """Logits [len(batch.logit_rows), V]; writes keys and values."""

    def _check(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            num_tokens, num_new = len(segment.token_ids), segment.num_new
            if not 1 <= num_new <= num_tokens or not 0 <= segment.num_logits <= num_new:
                raise ValueError(f"a segment of {num_new} new tokens cannot give {segment.num_logits} logits")
            depths_of(num_tokens, segment.parents)  # raises if a parent does not come first
            self._cache.check_fits(segment.row, num_tokens)
        if len({segment.row for segment in segments}) < len(segments):
            raise CacheRangeError("two segments of one forward share a row")
