"""The report of `bench batch`: ratios, tables, sentences and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starspec.bench.batch.plan import FAST, METHODS, PLAIN, batching_of
from starspec.bench.batch.rows import BatchRow, ratio_of
from starspec.bench.lossless import mistake_sentences, promises_tokens
from starspec.config import Dtype
from starspec.harness.compare import divergence_lines
from starspec.harness.figures import look, require_matplotlib, save
from starspec.harness.provenance import Provenance
from starspec.harness.report import Spread
from starspec.harness.table import Block, Column, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """What `starspec bench batch` saves."""

    provenance: Provenance
    is_whole: bool  # False after an interrupt
    rows: list[BatchRow]
    ratios: dict[str, dict[str, float]]  # name -> batch size -> tokens a second of rounds, ragged over another method
    num_draft_tokens: int
    draft_p_min: float  # of the drafts, as in a speculative config
    disable_by_batch_size: int | None  # rounds of more sequences drafted nothing
    draft_quantization: str
    dtype: Dtype
    numerics: str
    is_promised: bool  # whether these settings promise the tokens of plain decoding, in ragged batches
    max_passed_over: int | None  # of exspec; exspec-unbounded has none
    min_group: int  # of exspec
    is_multi_turn: bool
    admission: str  # of all but exspec, which refills its window
    temperature: float
    max_tokens: int
    load: float  # of arrivals; 0 = none
    context: int | None  # tokens that prompts were grown to; None = as they are
    max_prompt_tokens: int | None  # longer prompts were left out; None = none were
    num_left_out: int  # prompts
    prompt_tokens: Spread
    prompts_sha256: str  # of the prompt token ids, after growing or cutting
    gap_bound: str  # which differences count as explained

    @property
    def mistakes(self) -> list[str]:
        """A sentence for each kind of difference that must not occur."""
        broken = [row for row in self.rows if self._is_promised_of(row) and row.num_different]
        unexplained = [row for row in self.rows if row.num_different > row.num_explained]
        return mistake_sentences(*(f"{_names(rows)}: answers differ" if rows else "" for rows in (broken, unexplained)))

    def _is_promised_of(self, row: BatchRow) -> bool:
        layout = batching_of(row.method)
        return self.is_promised and not row.method.endswith(FAST) and promises_tokens(layout, self.dtype)

    @property
    def shortages(self) -> list[str]:
        """Sentences: which batches or ExSpec windows were larger than the number of prompts."""
        num_prompts = self.rows[0].num_answers
        batches = {row.batch_size for row in self.rows if row.batch_size > num_prompts}
        windows = {row.num_rows for row in self.rows if row.batch_size <= num_prompts < row.num_rows}
        answered = "1 prompt was" if num_prompts == 1 else f"{num_prompts} prompts were"
        return [
            f"{answered} answered, so that {those} of {', '.join(map(str, sorted(sizes)))} {what}"
            for those, sizes, what in (
                ("batches", batches, "never held as many sequences"),
                ("exspec's windows", windows, "were never full"),
            )
            if sizes
        ]


def ratios_of(rows: Sequence[BatchRow]) -> dict[str, dict[str, float]]:
    """Tokens a second of rounds: ragged over each other method, for every batch size that both ran with."""
    by_key = {(row.method, row.batch_size): row for row in rows}
    ratios: dict[str, dict[str, float]] = {}
    for (name, batch_size), row in by_key.items():
        ragged = by_key.get(("ragged", batch_size))
        if ragged is None or name == "ragged":
            continue
        ratio = ratio_of(row.ms_per_token, ragged.ms_per_token)
        ratios.setdefault(f"ragged_vs_{name.replace('-', '_')}", {})[str(batch_size)] = ratio
        if name == "eqspec":
            without = ratio_of(row.ms_per_token_without_realign, ragged.ms_per_token)
            ratios.setdefault("ragged_vs_eqspec_without_realign", {})[str(batch_size)] = without
    return ratios


def _names(rows: Sequence[BatchRow]) -> str:
    return ", ".join(f"{row.method} at batch {row.batch_size}" for row in rows)


def _completion(row: BatchRow) -> str | None:
    done = row.completion
    return None if done is None else f"{done.p50_s:.1f} / {done.p90_s:.1f} / {done.p99_s:.1f}"


COLUMNS = (
    Column("method", "method"),
    Column("batch", "batch_size"),
    Column("seq/round", "sequences_per_round", ".1f"),
    Column("tokens/s", "tokens_per_s.median", ".1f"),
    Column("scaling", "batch_scaling", ".2f"),
    Column("exact", "exact_match", ".1%"),
    Column("partial", "partial_match", ".1%"),
    Column("verify calls", "num_verify_calls"),
    Column("ms/verify", "ms_per_verify", ".1f"),
    Column("P50 / P90 / P99 s", _completion),
    Column("peak MiB", "peak_mib", ".0f"),
)
TIME_COLUMNS = (
    Column("method", "method"),
    Column("batch", "batch_size"),
    Column("prompts s", lambda row: f"{row.prefill_s:.1f} + {row.draft_prefill_s:.1f}"),
    Column("ms/token", "ms_per_token.median", ".1f"),
    Column("verify", "verify_share", ".1%"),
    Column("draft", "draft_share", ".1%"),
    Column("overhead", "overhead_share", ".1%"),
    Column("draft ms", "ms_draft", ".1f"),
    Column("pad + KV", lambda row: f"{row.ms_realign_pad:.2f} + {row.ms_realign_kv:.2f}"),
    Column("copy", "ms_copy", ".2f"),
    Column("sched.", "ms_schedule", ".2f"),
    Column("grouped", "grouping_rate", ".1%"),
    Column("wait s", "grouping_wait_s", ".2f"),
)
TITLE = (
    "seq/round = sequences that a batch really held; tokens/s: median, prompts included; scaling = tokens/s of rounds "
    "alone, over the method's own at batch 1"
)
TIME_TITLE = (
    "prompts s: prefill by target and draft before a sequence's rounds, once for all repeats; ms/token and shares are "
    "of rounds alone; draft to sched.: ms a round"
)


def blocks(report: BatchReport, hint: str = "") -> list[Block]:
    """What people read.

    Args:
        hint: behind each sentence about too few prompts.
    """
    left_out = [f"{report.num_left_out} prompts of more than {report.max_prompt_tokens} tokens were left out"]
    return [
        Table(TITLE, COLUMNS, report.rows),
        Table(TIME_TITLE, TIME_COLUMNS, report.rows),
        f"numerics: {report.numerics}",
        *(
            f"{name}: {', '.join(f'batch {size} {ratio:.2f}x' for size, ratio in by_batch_size.items())}"
            for name, by_batch_size in report.ratios.items()
        ),
        *(line for row in report.rows for line in _divergence_lines(row)),
        *(f"{sentence}{hint}" for sentence in report.shortages),
        *(left_out if report.num_left_out else []),
        *([] if report.is_whole else ["interrupted: these are the repeats that were done"]),
    ]


def _divergence_lines(row: BatchRow) -> list[str]:
    who = f"{row.method}, batch {row.batch_size}"
    return divergence_lines(who, row.first_divergence, row.num_different, row.num_explained)


def draw(rows: Sequence[BatchRow], path: Path) -> None:
    """Save four panels over batch size: scaling of each method, share and time of realignment, grouping rates.

    Raises: ConfigError if matplotlib is not installed or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(17, 4.4), layout="constrained")
    panels = scaling, share, time, grouping = figure.subplots(1, 4)
    _lines(scaling, rows, lambda row: row.batch_scaling)
    scaling.set_ylabel("tokens/s over the same at batch 1 (times)")
    _lines(share, _speculative(rows), lambda row: 100 * row.overhead_share)
    share.set_ylabel("overhead (% of rounds' time)")
    _lines(time, _speculative(rows), _overhead_ms)
    time.set_ylabel("overhead (ms a round)")
    _lines(grouping, _speculative(rows), lambda row: 100 * row.grouping_rate)
    grouping.set_ylabel("rounds without realignment (%)")
    sizes = sorted({row.batch_size for row in rows})
    for panel in panels:
        panel.set_xlabel("batch size (sequences)")
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, labels=[*map(str, sizes)], minor=False)
    if not scaling.lines:
        scaling.text(0.5, 0.5, "batch 1 was not measured", ha="center", transform=scaling.transAxes)
    lines = {line.get_label(): line for panel in (share, scaling) for line in panel.lines}
    figure.legend([*lines.values()], [*lines], loc="outside right center")
    save(figure, path)


def _speculative(rows: Sequence[BatchRow]) -> list[BatchRow]:
    return [row for row in rows if not row.method.startswith(PLAIN)]


def _overhead_ms(row: BatchRow) -> float:
    return row.ms_realign_pad + row.ms_realign_kv + row.ms_copy + row.ms_schedule


def _lines(panel: Any, rows: Sequence[BatchRow], value_of: Callable[[BatchRow], float | None]) -> None:
    """One line for each method, which looks the same in every panel."""
    for number, method in enumerate(METHODS):
        points = [(row.batch_size, value_of(row)) for row in rows if row.method == method]
        known = sorted((size, value) for size, value in points if value is not None)
        if known:
            sizes, values = zip(*known, strict=True)
            panel.plot(sizes, values, label=method, **look(number))
