"""Whether verifying in a half-precision format is about as fast as in float32, be it by multiplying as float32.

It is, unless torch has no oneDNN: then every weight is converted for every row (`models/linear/dense.py`).
"""

from __future__ import annotations

import time
from typing import Final

import torch

from starspec.doctor.checks import Check
from starspec.models.linear.dense import pack_dense

SIZE: Final = 1024  # of the square matrix: as the linears of a small model
NUM_ROWS: Final = 8  # of a verification
NUM_REPEATS: Final = 20  # the fastest counts: whatever else runs only ever adds
TOLERABLE: Final = 1.25  # times as long as in float32


def check_arithmetic(dtype: str, device: str) -> list[Check]:
    """Nothing to say of float32, or of an accelerator."""
    if dtype == "float32" or device != "cpu":
        return []
    ratio = linear_seconds(getattr(torch, dtype)) / linear_seconds(torch.float32)
    return [judge_arithmetic(dtype, ratio)]


def judge_arithmetic(dtype: str, ratio: float) -> Check:
    """Args: ratio: time of a verification's linear in `dtype`, against float32."""
    if ratio <= TOLERABLE:
        return Check("arithmetic", "ok", f"{NUM_ROWS} tokens take {ratio:.2f} times as long in {dtype} as in float32")
    return Check(
        "arithmetic",
        "warning",
        f"this processor is slow in {dtype}: {NUM_ROWS} tokens take {ratio:.1f} times as long as in float32, so that"
        " verifying drafts is dear; try --dtype float32",
    )


@torch.inference_mode()
def linear_seconds(dtype: torch.dtype) -> float:
    """The fastest of some runs of a linear over a verification's rows."""
    generator = torch.Generator().manual_seed(0)
    linear = pack_dense(torch.randn(SIZE, SIZE, generator=generator).to(dtype), None)
    x = torch.randn(NUM_ROWS, SIZE, generator=generator).to(dtype)
    times = []
    for _ in range(NUM_REPEATS):
        started_s = time.perf_counter()
        linear(x)
        times.append(time.perf_counter() - started_s)
    return min(times)
