"""Tables of measurements, for a terminal or a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from starspec.bench.batch.rows import BatchRow
    from starspec.bench.faults import FaultRow
    from starspec.bench.lossless import LosslessRow
    from starspec.bench.pair.rows import PairRow, StepRow
    from starspec.bench.wire.measure import WireRow
    from starspec.harness.compare import Divergence
    from starspec.harness.tree_report import TreeRow

PIPE_WIDTH = 140  # columns where there is no terminal to ask
NOTHING = "-"


def out() -> Console:
    """Standard output, wide enough for a table when it is no terminal."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def new_table(title: str, first: str, *columns: str) -> Table:
    """A table whose columns are numbers, but for the first and a few others."""
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="left" if column in ("drafts", "batching", "numerics") else "right")
    return table


def or_nothing(value: float | None, form: str) -> str:
    """A number in a form, or NOTHING."""
    return NOTHING if value is None else format(value, form)


def show_ratios(ratios: dict[str, float]) -> None:
    """Print each ratio of a report on a line of its own."""
    for name, ratio in ratios.items():
        out().print(f"{name.replace('_', ' ')}: {ratio:.2f}x")


def lossless_table(rows: Sequence[LosslessRow], title: str) -> Table:
    """One row for each way of sampling and of drafting."""
    table = new_table(
        title,
        "sampling",
        "drafts",
        "batching",
        "batch",
        "seq/round",
        "identical",
        "partial match",
        "tokens",
        "same bits",
        "near-ties",
        "acceptance length",
    )
    for row in rows:
        bits = NOTHING if row.num_bitwise_tokens is None else f"{row.num_bitwise_tokens}/{row.num_compared_tokens}"
        table.add_row(
            row.sampling,
            row.contender,
            row.batching,
            str(row.batch_size),
            f"{row.sequences_per_round:.1f}",
            f"{row.num_identical}/{row.num_prompts}",
            f"{row.partial_match_rate:.1%}",
            str(row.num_tokens),
            bits,
            str(row.num_near_ties),
            f"{row.acceptance_length:.2f}",
        )
    return table


def pair_table(rows: Sequence[PairRow]) -> Table:
    """One row for each method."""
    title = "tokens/s: median (lowest to highest) of the repeats, prompts included"
    table = new_table(
        title, "method", "batch", "K", "tokens/s", "acceptance length", "block efficiency", "as our plain"
    )
    for row in rows:
        rate = row.tokens_per_s
        table.add_row(
            row.method,
            str(row.batch_size),
            or_nothing(row.num_draft_tokens, "d"),
            f"{rate.median:.2f} ({rate.lowest:.2f} to {rate.highest:.2f})",
            or_nothing(row.acceptance_length, ".2f"),
            or_nothing(row.block_efficiency, ".2f"),
            f"{row.num_same_as_plain}/{row.num_answers}",
        )
    return table


def tree_table(rows: Sequence[TreeRow]) -> Table:
    """One row for each shape, temperature and stage."""
    table = new_table(
        "tokens/s: median (lowest to highest) of the repeats, prompts included; bytes = of verdicts and proposals",
        "stage",
        "T",
        "shape",
        "tokens/s",
        "over plain",
        "acceptance length",
        "block efficiency",
        "bytes / accepted",
        "as plain",
    )
    for row in rows:
        rate = row.tokens_per_s
        table.add_row(
            row.stage,
            f"{row.temperature:g}",
            row.shape,
            f"{rate.median:.2f} ({rate.lowest:.2f} to {rate.highest:.2f})",
            f"{row.vs_plain:.2f}x",
            or_nothing(row.acceptance_length, ".2f"),
            or_nothing(row.block_efficiency, ".2f"),
            or_nothing(row.bytes_per_accepted_token, ".0f"),
            f"{row.num_same_as_plain}/{row.num_answers}",
        )
    return table


def batch_table(rows: Sequence[BatchRow]) -> Table:
    """How fast, and whether right: one row for each method and batch size."""
    columns = ("seq/round", "tokens/s", "scaling", "exact", "partial", "verify calls", "ms/verify")
    table = new_table(
        "seq/round = what a batch really held; tokens/s: median, prompts included; scaling = tokens/s of rounds alone, "
        "over the method's own at batch 1",
        "method",
        "batch",
        *columns,
        "P50 / P90 / P99 s",
        "peak MiB",
    )
    for row in rows:
        done = row.completion
        table.add_row(
            row.method,
            str(row.batch_size),
            f"{row.sequences_per_round:.1f}",
            f"{row.tokens_per_s.median:.1f}",
            or_nothing(row.batch_scaling, ".2f"),
            f"{row.exact_match:.1%}",
            f"{row.partial_match:.1%}",
            str(row.num_verify_calls),
            f"{row.ms_per_verify:.1f}",
            NOTHING if done is None else f"{done.p50_s:.1f} / {done.p90_s:.1f} / {done.p99_s:.1f}",
            or_nothing(row.peak_mib, ".0f"),
        )
    return table


def batch_time_table(rows: Sequence[BatchRow]) -> Table:
    """Where the time goes: one row for each method and batch size."""
    table = new_table(
        "prompts s: what target and draft read before a sequence's rounds, once for all repeats; ms/token and shares "
        "are of rounds alone; draft to sched.: ms a round",
        "method",
        "batch",
        *("prompts s", "ms/token", "verify", "draft", "overhead"),
        *("draft ms", "pad + KV", "copy", "sched.", "grouped", "wait s"),
    )
    for row in rows:
        table.add_row(
            row.method,
            str(row.batch_size),
            f"{row.prefill_s:.1f} + {row.draft_prefill_s:.1f}",
            f"{row.ms_per_token.median:.1f}",
            f"{row.verify_share:.1%}",
            f"{row.draft_share:.1%}",
            f"{row.overhead_share:.1%}",
            f"{row.ms_draft:.1f}",
            f"{row.ms_realign_pad:.2f} + {row.ms_realign_kv:.2f}",
            f"{row.ms_copy:.2f}",
            f"{row.ms_schedule:.2f}",
            f"{row.grouping_rate:.1%}",
            f"{row.grouping_wait_s:.2f}",
        )
    return table


def step_table(rows: Sequence[StepRow]) -> Table:
    """One row for each width of step."""
    columns = ("step ms", "linears ms", "other", "GB/s of weights", "GB/s of memory", "limit ms", "step / limit")
    table = new_table("steps of the target; limit = bytes of its linears / memory's rate", "tokens", *columns)
    for row in rows:
        table.add_row(
            str(row.num_tokens),
            f"{row.step_ms:.1f}",
            f"{row.linears_ms:.1f}",
            f"{row.other_share:.1%}",
            f"{row.weight_gigabytes_per_s:.1f}",
            f"{row.read_gigabytes_per_s:.1f}",
            f"{row.bytes_ms:.1f}",
            f"{row.step_over_limit:.2f}",
        )
    return table


def wire_table(rows: Sequence[WireRow]) -> Table:
    """One row for each star and each echo."""
    title = (
        "milliseconds outside of the drafter's modelled forwards (synthetic accelerators); latency = of the hub, "
        "overhead = latency shared among those that wait, outside = of the round trip"
    )
    table = new_table(
        title,
        "what",
        "measured",
        "overhead p50",
        "latency p50",
        "p90",
        "p99",
        "outside p50",
        "bare echo",
        "round trip p50",
    )
    for row in rows:
        table.add_row(
            row.what,
            str(row.num_measured),
            or_nothing(row.overhead_ms_p50, ".3f"),
            or_nothing(row.latency_ms_p50, ".3f"),
            or_nothing(row.latency_ms_p90, ".3f"),
            or_nothing(row.latency_ms_p99, ".3f"),
            or_nothing(row.outside_ms_p50, ".3f"),
            or_nothing(row.loopback_ms_p50, ".3f"),
            f"{row.round_trip_ms_p50:.3f}",
        )
    return table


def fault_table(rows: Sequence[FaultRow]) -> Table:
    """One row for each fault."""
    columns = ("identical", "round ms", "gap before", "gap after", "may be", "gap of whole outage", "back after s")
    table = new_table(
        "longest gaps between two pieces of one stream, milliseconds; after = in 1.5 s from the fault",
        "fault of the hub",
        *columns,
    )
    for row in rows:
        table.add_row(
            row.fault,
            f"{row.num_identical}/{row.num_answers}",
            f"{row.round_ms:.0f}",
            f"{row.calm_gap_ms:.0f}",
            f"{row.gap_ms:.0f}",
            f"{row.max_gap_ms:.0f}",
            f"{row.outage_gap_ms:.0f}",
            f"{row.back_s:.2f}",
        )
    return table


def divergence_lines(rows: Sequence[LosslessRow]) -> list[str]:
    """Sentences for each row whose tokens differ."""
    lines = []
    for row in rows:
        batching = "" if row.batching == "ragged" else f"{row.batching}, "
        who = f"{row.sampling}, {row.contender}, {batching}batch {row.batch_size}"
        lines += _of_difference(who, row.first_divergence, row.num_prompts - row.num_identical, row.num_explained)
    return lines


def batch_divergence_lines(rows: Sequence[BatchRow]) -> list[str]:
    """Sentences for each row whose tokens differ."""
    return [
        line
        for row in rows
        for line in _of_difference(
            f"{row.method}, batch {row.batch_size}", row.first_divergence, row.num_different, row.num_explained
        )
    ]


def _of_difference(who: str, first: Divergence | None, num_different: int, num_explained: int) -> list[str]:
    if first is None:
        return []
    gap = "unknown" if first.logit_gap is None else f"{first.logit_gap:.6g}"
    kind = "a near-tie" if first.is_near_tie else "no near-tie"
    bound = "" if first.near_tie_gap is None else f" ({kind}: those are within {first.near_tie_gap:.3g})"
    decided = "" if first.rounding is None else f", decided by {first.rounding:.3g}"
    where = f"first divergence in prompt {first.prompt} at token {first.position}"
    what = f"{_token(first.expected)} expected, {_token(first.found)} found, logit gap {gap}{decided}{bound}"
    several = [f"  {num_different} answers differ, {num_explained} of them from a near-tie on"]
    return [f"{who}: {where}: {what}", *(several if num_different > 1 else [])]


def _token(token_id: int | None) -> str:
    return "the end" if token_id is None else f"token {token_id}"
