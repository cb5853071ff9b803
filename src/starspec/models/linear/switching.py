"""Linears with two forms, one for few rows and one for many, for drafts.

How many rows count as few depends on the processor. It is measured while the model is loaded: the most rows for which
the form for few is about as fast as the other one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import torch
from torch import Tensor

from starspec.models.linear.interface import PackedLinear

# weights of the forms for few that one pass reads: more than the caches of most processors hold
SAMPLE_BYTES: Final = 96 << 20
TRIED: Final = (1, 2, 4, 8, 12)
UNTRIED: Final = 4  # the limit where the model is too small to measure: kernels process rows in fours
NUM_PASSES: Final = 3
ABOUT: Final = 1.05  # a larger ratio of times is worth reading more bytes

log = structlog.get_logger()


class SwitchingLinear:
    """One linear in two forms: one for few rows, one for many. It takes the memory of both.

    A row's result depends on how many rows are computed with it, so this is for drafts, never for a target.

    Args:
        for_few: the form for few rows.
        for_many: the form for more rows.
        limit: how many rows count as few.
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
        """Bytes that one decoding step reads."""
        return self._form(1).num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._form(x.shape[0])(x)

    def _form(self, num_rows: int) -> PackedLinear:
        return self.for_few if num_rows <= self._limit.rows else self.for_many


class RowLimit:
    """How many rows count as few, for all linears of a model. It is measured once there are enough of them.

    Args:
        rows: the limit until it is measured.
        clock: seconds, monotonic.
    """

    def __init__(self, rows: int = UNTRIED, clock: Callable[[], float] = time.perf_counter) -> None:
        self.rows = rows
        self._clock = clock
        self._sample: list[SwitchingLinear] = []
        self._num_bytes = 0

    def try_on(self, linear: SwitchingLinear) -> None:
        """Add a linear to the sample. Effects: measures `rows` as soon as the sample is large enough."""
        if self._num_bytes >= SAMPLE_BYTES:
            return
        self._sample.append(linear)
        self._num_bytes += linear.for_few.num_bytes
        if self._num_bytes >= SAMPLE_BYTES:
            self.rows = most_rows_for_few(self._sample, self._clock)
            self._sample = []
            log.info("quantized weights are used for up to this many rows", rows=self.rows)


@torch.inference_mode()
def most_rows_for_few(linears: Sequence[SwitchingLinear], clock: Callable[[], float] = time.perf_counter) -> int:
    """The most rows of those tried for which the form for few is about as fast as the form for many; 0 if it never is.

    The two forms take turns, and the fastest of NUM_PASSES counts, so that a busy moment of the machine has little
    influence.
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
