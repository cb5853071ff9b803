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


class SwitchingLinear:
    """Two forms of one linear: one for few rows, one for many. Costs the memory of both.

    A row's result depends on how many others are computed with it: for drafts, never for a target.

    Args:
        limit: rows that the narrow form is used for.
        in_features: K.
        dtype: of inputs.
    """

    def __init__(
        self, for_few: PackedLinear, for_many: PackedLinear, limit: RowLimit, in_features: int, dtype: torch.dtype
    ) -> None:
        self.for_few, self.for_many = for_few, for_many
        self.in_features, self.dtype = in_features, dtype
        self._limit = limit

    @property
    def num_bytes(self) -> int:
        """Of one decoding step."""
        return self._form(1).num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._form(x.shape[0])(x)

    def _form(self, num_rows: int) -> PackedLinear:
        return self.for_few if num_rows <= self._limit.rows else self.for_many


class RowLimit:
    """How many rows are few, the same for all linears of a model: tried once there are enough of them."""

    def __init__(self, rows: int = UNTRIED, clock: Callable[[], float] = time.perf_counter) -> None:
        self.rows = rows
        self._clock = clock
        self._sample: list[SwitchingLinear] = []
        self._num_bytes = 0

    def try_on(self, linear: SwitchingLinear) -> None:
        """Take one more into the sample. Effects: `rows`, as soon as the sample is large enough."""
        if self._num_bytes >= SAMPLE_BYTES:
            return
        self._sample.append(linear)
        self._num_bytes += linear.for_few.num_bytes
        if self._num_bytes >= SAMPLE_BYTES:
            self.rows = most_rows_for_few(self._sample, self._clock)
            self._sample = []
            log.info("quantized weights tried", rows=self.rows)


@torch.inference_mode()
def most_rows_for_few(linears: Sequence[SwitchingLinear], clock: Callable[[], float] = time.perf_counter) -> int:
    """The largest of the row counts tried up to which the narrow forms are about as quick, 0 if they never are.

    The forms take turns, and the quickest of NUM_PASSES counts, so that a busy moment of the machine decides little.
    """
    most = 0
    for num_rows in TRIED:
        inputs = {each.in_features: torch.ones(num_rows, each.in_features, dtype=each.dtype) for each in linears}
        few_s = many_s = float("inf")
        for _ in range(NUM_PASSES):
            few_s = min(few_s, _pass_s([(each.for_few, inputs[each.in_features]) for each in linears], clock))
            many_s = min(many_s, _pass_s([(each.for_many, inputs[each.in_features]) for each in linears], clock))
        if ABOUT * many_s < few_s:
            break
        most = num_rows
    return most


def _pass_s(calls: Sequence[tuple[PackedLinear, Tensor]], clock: Callable[[], float]) -> float:
    started_s = clock()
    for linear, rows in calls:
        linear(rows)
    return clock() - started_s
