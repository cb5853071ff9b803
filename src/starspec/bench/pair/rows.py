"""The rows and ratios of `bench pair`, and where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from starspec.bench.pair.methods import Method, Timed, key
from starspec.harness.decode import JobResult
from starspec.harness.report import Spread
from starspec.harness.step_profile import StepProfile, step_profile
from starspec.harness.table import Column, Table, share
from starspec.models.packed import PackedRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One method."""

    method: str
    batch_size: int
    num_draft_tokens: int | None
    num_tokens: int  # emitted in one repeat
    tokens_per_s: Spread  # over the repeats; prompt processing included
    seconds: float  # median of the repeats
    acceptance_length: float | None
    acceptance_rate: float | None
    block_efficiency: float | None
    num_same_as_plain: int  # answers that are those of our plain decoding
    num_answers: int


def ratios_of(rows: Sequence[PairRow]) -> dict[str, float]:
    """Ratios of medians at batch size 1. There is no ratio for assisted generation if it did not run."""
    rate = {row.method: row.tokens_per_s.median for row in rows if row.batch_size == 1}
    ratios = {
        "speculative_vs_plain": round(rate["speculative"] / rate["plain"], 3),
        "plain_vs_generate": round(rate["plain"] / rate["transformers generate"], 3),
    }
    assisted = next((value for name, value in rate.items() if name.startswith("transformers assisted")), None)
    if assisted is not None:
        ratios["speculative_vs_assisted"] = round(rate["speculative"] / assisted, 3)
    return ratios


def plain_answers(methods: Sequence[Method], timed: dict[str, Timed]) -> dict[str, JobResult]:
    """Our plain answers: from batch size 1 where available, else from a batch."""
    batched = [key(each) for each in methods if each.name == "plain" and each.batch_size > 1]
    return {name: answer for plain in (*batched, "plain") for name, answer in timed[plain].answers.items()}


def pair_row(method: Method, timed: Timed, plain: dict[str, JobResult]) -> PairRow:
    acceptance = timed.acceptance if method.is_ours and method.num_draft_tokens else None
    return PairRow(
        method=method.name,
        batch_size=method.batch_size,
        num_draft_tokens=method.num_draft_tokens,
        num_tokens=timed.num_tokens,
        tokens_per_s=Spread.of([round(rate, 3) for rate in timed.tokens_per_s]),
        seconds=round(median(timed.seconds), 3),
        acceptance_length=round(acceptance.acceptance_length, 3) if acceptance else None,
        acceptance_rate=round(acceptance.acceptance_rate, 3) if acceptance else None,
        block_efficiency=round(acceptance.block_efficiency, 3) if acceptance else None,
        num_same_as_plain=sum(answer.token_ids == plain[name].token_ids for name, answer in timed.answers.items()),
        num_answers=len(timed.answers),
    )


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
    read_gigabytes_per_s: float  # the highest memory rate of this run, of a plain sum or of linears
    bytes_ms: float  # the limit: weight bytes / that rate
    step_over_limit: float  # step / limit, 1 is perfect


def measure_steps(runner: PackedRunner, nums_tokens: Sequence[int]) -> list[StepRow]:
    """Profile steps of several widths. Effects: leases a cache row meanwhile."""
    plain_sum = read_gigabytes_per_s()
    profiles = [step_profile(runner, num_tokens=each) for each in nums_tokens]
    # memory speed varies over minutes; the limit is the highest rate that this run has seen
    rate = max(plain_sum, *(each.weight_gigabytes_per_s for each in profiles))
    return [_step_row(each, rate) for each in profiles]


def read_gigabytes_per_s() -> float:
    """The memory rate of the fastest of several sums, with torch's threads."""
    block = torch.zeros(READ_BYTES // 8, dtype=torch.int64)
    times = []
    for _ in range(NUM_READS):
        started_s = time.perf_counter()
        block.sum()
        times.append(time.perf_counter() - started_s)
    return READ_BYTES / min(times) / 1e9


def _step_row(profile: StepProfile, rate: float) -> StepRow:
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


COLUMNS = (
    Column("method", "method"),
    Column("batch", "batch_size"),
    Column("K", "num_draft_tokens"),
    Column("tokens/s", "tokens_per_s", ".2f"),
    Column("acceptance length", "acceptance_length", ".2f"),
    Column("block efficiency", "block_efficiency", ".2f"),
    Column("as our plain", share("num_same_as_plain", "num_answers")),
)
STEP_COLUMNS = (
    Column("tokens", "num_tokens"),
    Column("step ms", "step_ms", ".1f"),
    Column("linears ms", "linears_ms", ".1f"),
    Column("other", "other_share", ".1%"),
    Column("GB/s of weights", "weight_gigabytes_per_s", ".1f"),
    Column("GB/s of memory", "read_gigabytes_per_s", ".1f"),
    Column("limit ms", "bytes_ms", ".1f"),
    Column("step / limit", "step_over_limit", ".2f"),
)


def pair_table(rows: Sequence[PairRow]) -> Table:
    """One row for each method."""
    return Table("tokens/s: median (lowest to highest) of the repeats, prompts included", COLUMNS, rows)


def step_table(rows: Sequence[StepRow]) -> Table:
    """One row for each width of step."""
    return Table("steps of the target; limit = bytes of its linears / memory's rate", STEP_COLUMNS, rows)
