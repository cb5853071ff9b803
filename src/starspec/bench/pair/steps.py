"""Where a step's time goes, and how far it is from what memory allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from starspec.harness.step_profile import StepProfile, step_profile
from starspec.models.packed import PackedRunner

READ_BYTES = 2**29  # far more than any cache
NUM_READS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of the target, one sequence."""

    num_tokens: int  # 1: plain decoding, K + 1: a verification
    step_ms: float
    linears_ms: float
    other_share: float  # of the step, not spent in linears
    weight_bytes: int
    weight_gigabytes_per_s: float  # at which the linears read
    read_gigabytes_per_s: float  # the most that this machine's memory gave: to a plain sum, or to linears
    bytes_ms: float  # the limit: weight bytes / that rate
    step_over_limit: float  # step / limit, 1 is perfect


def measure_steps(runner: PackedRunner, nums_tokens: Sequence[int]) -> list[StepRow]:
    """Profile steps of several widths. Effects: leases a cache row meanwhile."""
    plain_sum = read_gigabytes_per_s()
    profiles = [step_profile(runner, num_tokens=each) for each in nums_tokens]
    # memory has fast and slow minutes: a limit must be one that nothing in this run has passed
    rate = max(plain_sum, *(each.weight_gigabytes_per_s for each in profiles))
    return [_row(each, rate) for each in profiles]


def read_gigabytes_per_s() -> float:
    """The fastest of some sums over memory, with torch's threads."""
    block = torch.zeros(READ_BYTES // 8, dtype=torch.int64)
    times = []
    for _ in range(NUM_READS):
        started_s = time.perf_counter()
        block.sum()
        times.append(time.perf_counter() - started_s)
    return READ_BYTES / min(times) / 1e9


def _row(profile: StepProfile, rate: float) -> StepRow:
    bytes_ms = profile.weight_bytes / rate / 1e6
    return StepRow(
        num_tokens=profile.num_tokens,
        step_ms=round(profile.step_ms, 2),
        linears_ms=round(profile.linears_ms, 2),
        other_share=round(profile.other_share, 4),
        weight_bytes=profile.weight_bytes,
        weight_gigabytes_per_s=round(profile.weight_gigabytes_per_s, 2),
        read_gigabytes_per_s=round(rate, 2),
        bytes_ms=round(bytes_ms, 2),
        step_over_limit=round(profile.step_ms / bytes_ms, 3),
    )
