"""How wide a small forward is padded: of the row counts that give the same bits, the narrowest that is about as quick
as any.

Two rows need not be quicker than five. Both read the same weights, which is what takes the time, and some kernels for
few rows read them more slowly: on an AMD EPYC with bf16 arithmetic a step of a model of 1.5 billion parameters takes
1.4 times as long over two rows as over five.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

from starspec.models.batch import RowRange
from starspec.models.linear.interface import StepLinear

WIDEST: Final = 8  # padding further is not tried: rows of padding cost attention, norms and logits too
SAMPLE_BYTES: Final = 256 << 20  # of weights that one pass reads: more than the caches of most processors hold
NUM_PASSES: Final = 5
MAX_S: Final = 2.0  # after which no further pass begins: a processor that needs so long is one to spare
ABOUT: Final = 1.05  # a difference that is worth rows of padding


@torch.inference_mode()
def quickest_rows(
    linears: Sequence[StepLinear],
    rows: RowRange,
    dtype: torch.dtype,
    clock: Callable[[], float] = time.perf_counter,
) -> RowRange:
    """The range with the row count as its lowest that small forwards are best padded to, on CPU.

    Row counts take turns, and the quickest of NUM_PASSES counts, so that a busy moment of the machine decides little.
    """
    if rows.lowest >= WIDEST:
        return rows
    sample = _sample(linears)
    widths = range(rows.lowest, min(WIDEST, rows.highest or WIDEST) + 1)
    inputs = {linear.in_features: torch.zeros(WIDEST, linear.in_features, dtype=dtype) for linear in sample}
    seconds = dict.fromkeys(widths, float("inf"))
    ends_s = clock() + MAX_S
    for turn in range(NUM_PASSES):
        if turn and clock() > ends_s:
            break
        for width in widths:
            started_s = clock()
            for linear in sample:
                linear.call(inputs[linear.in_features][:width])
            seconds[width] = min(seconds[width], clock() - started_s)
    return replace(rows, lowest=narrowest_of_the_quick(seconds))


def narrowest_of_the_quick(seconds: Mapping[int, float]) -> int:
    """The smallest row count that takes at most ABOUT times as long as the quickest."""
    limit_s = ABOUT * min(seconds.values())
    return min(width for width, each_s in seconds.items() if each_s <= limit_s)


def _sample(linears: Sequence[StepLinear]) -> list[StepLinear]:
    """The first ones of a step, until they are SAMPLE_BYTES together."""
    sample, num_bytes = [], 0
    for linear in linears:
        sample.append(linear)
        num_bytes += linear.num_bytes
        if num_bytes >= SAMPLE_BYTES:
            break
    return sample
