"""Where the time of a step goes: its linears, which are bound by memory, and everything else, which is overhead."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from starspec.models.packed import PackedRunner
from starspec.models.runner import Segment


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One decoding step against its own linears, measured in turns in one process."""

    num_tokens: int  # new tokens of the step
    context_len: int  # committed tokens before them
    step_ms: float  # fastest whole step
    linears_ms: float  # fastest run of the same linears alone: the same row count, in the same order
    weight_bytes: int  # read by the linears of one step

    @property
    def other_share(self) -> float:
        """Share of the step that is not spent in linears, 0..1."""
        return max(0.0, 1 - self.linears_ms / self.step_ms)

    @property
    def weight_gigabytes_per_s(self) -> float:
        """Rate at which the linears read their weights."""
        return self.weight_bytes / self.linears_ms / 1e6


@torch.inference_mode()
def step_profile(
    runner: PackedRunner, *, num_tokens: int = 1, context_len: int = 128, num_repeats: int = 20
) -> StepProfile:
    """Measure a decoding step of one sequence.

    Args:
        num_tokens: 1 is plain decoding, K + 1 a verification.
        num_repeats: the fastest of so many counts; whatever else runs on the machine only ever adds.
    Raises: NoFreeRow if no cache row is free; CacheRangeError if the context does not fit one.
    Effects: leases a row meanwhile.
    """
    cache, linears = runner.cache, runner.step_linears
    num_rows = max(num_tokens, runner.rows.lowest)
    inputs = {
        size: torch.randn(num_rows, size).to(cache.device, cache.dtype)
        for size in {linear.in_features for linear in linears}
    }
    row = cache.lease()
    try:
        runner.forward([Segment(row, [0] * context_len, 0)])
        cache.append(row, context_len)
        segments = [Segment(row, [0] * num_tokens, num_tokens)]
        step_ms, linears_ms = _fastest_in_turns(
            lambda: runner.forward(segments),
            lambda: [linear.call(inputs[linear.in_features]) for linear in linears],
            num_repeats,
        )
    finally:
        cache.free(row)
    return StepProfile(num_tokens, context_len, step_ms, linears_ms, sum(each.num_bytes for each in linears))


def _fastest_in_turns(one: Callable[[], object], other: Callable[[], object], num_repeats: int) -> tuple[float, float]:
    """Milliseconds of the fastest run of each, run alternately so that both see the same machine."""
    times = [(_run_ms(one), _run_ms(other)) for _ in range(num_repeats)]
    return min(first for first, _ in times), min(second for _, second in times)


def _run_ms(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)
