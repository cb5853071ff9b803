"""Linears in two forms, one for few rows and one for many, for drafts.

How many are few depends on the processor, and is tried on it while the model is loaded: as many as the narrow forms are
quicker for than the wide ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import torch
from torch import Tensor

from starspec.models.linear.interface import PackedLinear

SAMPLE_BYTES: Final = 96 << 20  # of narrow weights that one pass reads: more than the caches of most processors hold
TRIED: Final = (1, 2, 4, 8, 12)
UNTRIED: Final = 4  # where there is too little to try it on: kernels take rows by fours
NUM_PASSES: Final = 3
ABOUT: Final = 1.05  # a difference that is worth reading more bytes

log = structlog.get_logger()


class NarrowOrWide:
    """Two forms of one linear: one for few rows, one for many. Costs the memory of both.

    A row's result depends on how many others are computed with it: for drafts, never for a target.

    Args:
        limit: rows that the narrow form is used for.
        in_features: K.
        dtype: of inputs.
    """

    def __init__(
        self, narrow: PackedLinear, wide: PackedLinear, limit: RowLimit, in_features: int, dtype: torch.dtype
    ) -> None:
        self.narrow, self.wide = narrow, wide
        self.in_features, self.dtype = in_features, dtype
        self._limit = limit

    @property
    def num_bytes(self) -> int:
        """Of one decoding step."""
        return self._form(1).num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._form(x.shape[0])(x)

    def _form(self, num_rows: int) -> PackedLinear:
        return self.narrow if num_rows <= self._limit.rows else self.wide


class RowLimit:
    """How many rows are few, the same for all linears of a model: tried once there are enough of them."""

    def __init__(self, rows: int = UNTRIED, clock: Callable[[], float] = time.perf_counter) -> None:
        self.rows = rows
        self._clock = clock
        self._sample: list[NarrowOrWide] = []
        self._num_bytes = 0

    def try_on(self, linear: NarrowOrWide) -> None:
        """Take one more into the sample. Effects: `rows`, as soon as the sample is large enough."""
        if self._num_bytes >= SAMPLE_BYTES:
            return
        self._sample.append(linear)
        self._num_bytes += linear.narrow.num_bytes
        if self._num_bytes >= SAMPLE_BYTES:
            self.rows = most_narrow_rows(self._sample, self._clock)
            self._sample = []
            log.info("quantized weights tried", rows=self.rows)


@torch.inference_mode()
def most_narrow_rows(linears: Sequence[NarrowOrWide], clock: Callable[[], float] = time.perf_counter) -> int:
    """The largest of the row counts tried up to which the narrow forms are about as quick, 0 if they never are.

    The forms take turns, and the quickest of NUM_PASSES counts, so that a busy moment of the machine decides little.
    """
    most = 0
    for num_rows in TRIED:
        inputs = {each.in_features: torch.ones(num_rows, each.in_features, dtype=each.dtype) for each in linears}
        narrow_s = wide_s = float("inf")
        for _ in range(NUM_PASSES):
            narrow_s = min(narrow_s, _pass_s([(each.narrow, inputs[each.in_features]) for each in linears], clock))
            wide_s = min(wide_s, _pass_s([(each.wide, inputs[each.in_features]) for each in linears], clock))
        if ABOUT * wide_s < narrow_s:
            break
        most = num_rows
    return most


def _pass_s(calls: Sequence[tuple[PackedLinear, Tensor]], clock: Callable[[], float]) -> float:
    started_s = clock()
    for linear, rows in calls:
        linear(rows)
    return clock() - started_s
