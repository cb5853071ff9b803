"""`starspec bench warm`: whether a draft is slower after an idle gap (StarSD section 5.3), on this machine.

The authors measured 16.1 ms a token after gaps of 10 to 30 ms, and 8.9 ms without gaps. This benchmark times one-token
steps right after gaps of different lengths, and the steps that follow.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from starspec.config import ModelConfig
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table, ratio_lines
from starspec.models.loading.load import load_runner
from starspec.models.runner import ModelRunner, Segment
from starspec.sampling.argmax import argmaxes

PREFIX_LEN: Final = 128  # committed tokens
TOKEN_ID: Final = 1  # its meaning does not matter
NUM_STEADY: Final = 3  # steps before each gap
NUM_TIMED: Final = 4  # steps after it


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmPlan:
    """How much to measure."""

    gaps_ms: tuple[float, ...] = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
    num_repeats: int = 200  # of each gap


QUICK = WarmPlan(num_repeats=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmRow:
    """Steps after gaps of one length: medians. Gaps of all lengths alternate in random order."""

    gap_ms: float
    step_ms: tuple[float, ...]  # the first step after the gap, the second, ...
    first_vs_steady: float  # first step after the gap over first step without a gap
    first_p90_ms: float


def measure_warm(draft: ModelConfig, plan: WarmPlan, advance: Callable[[str], None]) -> Report:
    """Time steps after gaps. The process sleeps in the gaps.

    Args:
        advance: called with what is about to be measured.
    Raises: ModelError if the draft is missing, corrupt or not supported.
    """
    runner = load_runner(draft)
    row = runner.cache.lease()
    prefix = [TOKEN_ID] * min(PREFIX_LEN, runner.info.max_model_len - 1)
    runner.forward([Segment(row, prefix, num_logits=0)])
    runner.cache.append(row, len(prefix))
    times: dict[float, list[list[float]]] = {gap_ms: [] for gap_ms in plan.gaps_ms}
    order = random.Random(0)  # noqa: S311  (not for secrets)
    for repeat in range(plan.num_repeats):
        advance(f"repeat {repeat + 1}")
        for gap_ms in order.sample(plan.gaps_ms, len(plan.gaps_ms)):
            times[gap_ms].append(_steps_after(gap_ms / 1e3, runner, row))
    rows = [_row(gap_ms, steps, times[min(plan.gaps_ms)]) for gap_ms, steps in times.items()]
    ratios = {f"step_after_{row.gap_ms:g}_ms_idle_vs_none": row.first_vs_steady for row in rows if row.gap_ms}
    return Report(collect_provenance({"draft": draft.model}), rows, ratios, {"quantization": draft.quantization})


def _steps_after(gap_s: float, runner: ModelRunner, row: int) -> list[float]:
    """Milliseconds of each step after a gap."""
    for _ in range(NUM_STEADY):
        _step_ms(runner, row)
    if gap_s:
        time.sleep(gap_s)
    return [_step_ms(runner, row) for _ in range(NUM_TIMED)]


def _step_ms(runner: ModelRunner, row: int) -> float:
    started_s = time.perf_counter()
    argmaxes(runner.forward([Segment(row, [TOKEN_ID], num_logits=1)]).logits)
    return (time.perf_counter() - started_s) * 1e3


def _row(gap_ms: float, steps: Sequence[Sequence[float]], steady: Sequence[Sequence[float]]) -> WarmRow:
    firsts = sorted(each[0] for each in steps)
    return WarmRow(
        gap_ms=gap_ms,
        step_ms=tuple(median(each[index] for each in steps) for index in range(NUM_TIMED)),
        first_vs_steady=median(firsts) / median(each[0] for each in steady),
        first_p90_ms=firsts[int(0.9 * len(firsts))],
    )


def blocks(report: Report) -> list[Block]:
    """What people read: one row for each length of a gap."""
    steps = [Column(f"step {index + 1}", _step_of(index), ".2f") for index in range(NUM_TIMED)]
    columns = [
        Column("gap ms", "gap_ms", "g"),
        *steps,
        Column("first p90", "first_p90_ms", ".2f"),
        Column("x no gap", "first_vs_steady", ".2f"),
    ]
    return [Table("milliseconds of the steps after a gap, medians", columns, report.rows), *ratio_lines(report.ratios)]


def _step_of(index: int) -> Callable[[WarmRow], float]:
    return lambda row: row.step_ms[index]
