"""For which row counts of a forward every row gets the same bits in all linears, and which of them is best to pad to.

The fewest rows are not always the fastest. Two rows and five rows read the same weights, which is what takes the time,
and some kernels for few rows read them more slowly. On an AMD EPYC with bf16 arithmetic, a step of a model with 1.5
billion parameters takes 1.4 times as long over two rows as over five.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from starspec.models.batch import RowRange
from starspec.models.linear.dense import PrepackedLinear
from starspec.models.linear.interface import StepLinear
from starspec.models.numerics.ragged_attention import MAX_TOKENS

WIDEST: Final = 8  # more padding is not tried, because rows of padding also cost attention, norms and logits
SAMPLE_BYTES: Final = 256 << 20  # weights that one pass reads: more than the caches of most processors hold
NUM_PASSES: Final = 5
MAX_S: Final = 2.0  # no pass begins after this time: on such a slow processor the choice matters less than the start
ABOUT: Final = 1.05  # a larger ratio of times is worth rows of padding
MIN_ROWS: Final = 2  # a single row is a matrix-vector product: another kernel, whose different rounding rarely shows
MAX_ROWS: Final = MAX_TOKENS  # no forward of several sequences is wider
# the range must contain this row count: more padding of every decoding step would cost more than it gains
ANCHOR_ROWS: Final = 8
SURE_ROWS: Final = 2 * ANCHOR_ROWS  # tried however long it takes
# Wider forwards are tried for this long. It is CPU time of this thread, so that a busy machine does not look like a
# slow one. The limit is generous: where reading the weights takes long, splitting a forward costs a quarter of its time
# (8 sequences of 4 tokens with a target of 1.5 billion float32 weights take 1,258 ms instead of 1,005), and the result
# is cached between starts.
PROBE_S: Final = 30.0
NUM_OUTPUTS: Final = 50_000  # compared for each row count, because two kernels often agree in 99.96% of rounded outputs


@torch.inference_mode()
def invariant_rows(
    linears: Sequence[StepLinear], dtype: torch.dtype, device: torch.device, probe_s: float = PROBE_S
) -> RowRange | None:
    """The widest range of row counts around `ANCHOR_ROWS` for which all linears give each row the same bits.

    Only one linear of each shape is tried, the cheapest first.

    Args:
        linears: of one decoding step.
        dtype, device: of the model.
        probe_s: CPU seconds for row counts above SURE_ROWS.
    Returns: None if the range has no second row count.
    """
    lowest, highest = MIN_ROWS, MAX_ROWS
    deadline_s = time.thread_time() + probe_s
    of_each_shape = {(linear.in_features, linear.num_bytes): linear for linear in linears}
    for linear in sorted(of_each_shape.values(), key=lambda linear: linear.num_bytes):
        # cubed: as in real activations a few entries dominate, so that another order of summation shows
        x = torch.randn(MAX_ROWS, linear.in_features, generator=torch.Generator().manual_seed(0)).pow(3)
        given = x.to(device, dtype)
        if isinstance(linear.call, PrepackedLinear):  # if it sums in float32, compare results before they are rounded
            given = given.float()
        lowest, highest = _narrow(linear, given, lowest, highest, deadline_s)
    return RowRange(lowest, highest) if lowest < highest else None


def _narrow(linear: StepLinear, x: Tensor, lowest: int, highest: int, deadline_s: float) -> tuple[int, int]:
    """Narrow lowest..highest to the row counts around the anchor that are shown in time to give the anchor's bits."""
    # in reverse, so that each row has another place than below
    blocks = x.view(-1, ANCHOR_ROWS, x.shape[-1]).flip(1)
    expected = torch.cat([linear.call(block).flip(0) for block in blocks])

    def agrees(num_rows: int) -> bool:
        num_calls = min(-(-NUM_OUTPUTS // (num_rows * expected.shape[1])), MAX_ROWS // num_rows)
        parts = [slice(call * num_rows, (call + 1) * num_rows) for call in range(num_calls)]
        return all(torch.equal(linear.call(x[part]), expected[part]) for part in parts)

    for num_rows in range(ANCHOR_ROWS, lowest - 1, -1):
        if not agrees(num_rows):
            lowest = num_rows + 1
            break
    for num_rows in range(ANCHOR_ROWS + 1, highest + 1):
        is_late = num_rows > SURE_ROWS and time.thread_time() > deadline_s
        if is_late or not agrees(num_rows):
            highest = num_rows - 1
            break
    return lowest, highest


@torch.inference_mode()
def quickest_rows(
    linears: Sequence[StepLinear],
    rows: RowRange,
    dtype: torch.dtype,
    clock: Callable[[], float] = time.perf_counter,
) -> RowRange:
    """Raise the lower end of a range to the row count that small forwards are best padded to, on a CPU.

    Row counts take turns, and the fastest of NUM_PASSES counts, so that a busy moment of the machine has little
    influence.

    Args:
        linears: of one decoding step.
        rows: the range that preserves bits.
        dtype: of inputs.
        clock: seconds, monotonic.
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
    """The smallest row count that takes at most ABOUT times as long as the fastest."""
    limit_s = ABOUT * min(seconds.values())
    return min(width for width, each_s in seconds.items() if each_s <= limit_s)


def _sample(linears: Sequence[StepLinear]) -> list[StepLinear]:
    """The first linears of a step with SAMPLE_BYTES of weights together."""
    sample, num_bytes = [], 0
    for linear in linears:
        sample.append(linear)
        num_bytes += linear.num_bytes
        if num_bytes >= SAMPLE_BYTES:
            break
    return sample
