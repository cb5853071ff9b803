"""The rows, ratios, sentences and picture of `bench relaxed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from starspec.bench.relaxed.problems import Task
from starspec.bench.relaxed.program import Outcome
from starspec.harness.compare import compare
from starspec.harness.decode import Job, JobResult
from starspec.harness.figures import look, require_matplotlib, save
from starspec.harness.intervals import Estimate, mean_of, mean_ratio, share_of
from starspec.harness.provenance import Provenance
from starspec.harness.table import Block, Column, Table, share
from starspec.speculation.acceptance import KeyThresholds
from starspec.stats import AcceptanceStats

PLAIN: Final = "plain"


@dataclass(slots=True)
class Runs:
    """One way of decoding, over the problems of one task."""

    tau: float | None  # None = plain decoding
    answers: list[JobResult] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)  # of the answers
    seconds: list[float] = field(default_factory=list)  # of each group
    num_tokens: list[int] = field(default_factory=list)  # of each group

    @property
    def name(self) -> str:
        return PLAIN if self.tau is None else f"tau {self.tau:g}"

    def add(self, answers: Sequence[JobResult], seconds: float) -> None:
        """Add a group."""
        self.answers += answers
        self.seconds.append(seconds)
        self.num_tokens.append(sum(len(answer.token_ids) for answer in answers))

    def over(self, other: Runs) -> Estimate:
        """How many times as fast it is, in tokens a second: the mean over the groups, with its interval."""
        rates = (
            [num / seconds for num, seconds in zip(each.num_tokens, each.seconds, strict=True)]
            for each in (self, other)
        )
        return mean_ratio([mine / theirs for mine, theirs in zip(*rates, strict=True)]).rounded(4)

    @property
    def acceptance_length(self) -> Estimate | None:
        """The mean over the answers, with its interval; None if nothing drafted."""
        each = [answer.stats.acceptance for answer in self.answers]
        lengths = [acceptance.acceptance_length for acceptance in each if acceptance.num_drafts]
        return mean_of(lengths).rounded(4) if lengths else None

    @property
    def acceptance(self) -> AcceptanceStats:
        total = AcceptanceStats()
        for answer in self.answers:
            total.add(answer.stats.acceptance)
        return total

    @property
    def is_right(self) -> list[bool]:
        return [outcome == "passed" for outcome in self.outcomes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxedRow:
    """One way of decoding one task's problems. Intervals are of 95%."""

    task: str
    tau: float | None  # None = plain decoding, 0 = strict
    num_problems: int
    tokens_per_s: float  # of all groups; prompts included
    vs_strict: Estimate | None  # tokens/s over those of tau = 0; None for plain decoding and tau = 0
    vs_plain: Estimate | None
    acceptance_length: Estimate | None  # tokens of a round with a draft, averaged over answers
    block_efficiency: float  # tokens per target forward
    num_accepted_tokens: int  # draft tokens
    num_relaxed_tokens: int  # of those, accepted by relaxation only
    accuracy: Estimate  # share of problems that are solved
    num_right: int
    num_lost: int  # solved by tau = 0 only
    num_gained: int  # not solved by tau = 0
    num_timed_out: int  # programs that did not end; they count as wrong
    num_cut: int  # answers that max_tokens ended
    num_same_as_plain: int  # answers that are token for token those of plain decoding
    partial_match_rate: float  # share of plain decoding's tokens before the first difference, averaged over answers
    outcomes: str  # of each problem in turn: 1 = right
    group_tokens: list[int]
    group_seconds: list[float]

    @property
    def name(self) -> str:
        return PLAIN if self.tau is None else f"{self.tau:g}"

    @property
    def relaxed_share(self) -> float | None:
        """Share of the accepted draft tokens that only relaxation accepted."""
        return self.num_relaxed_tokens / self.num_accepted_tokens if self.num_accepted_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxedReport:
    """What `starspec bench relaxed` saves."""

    provenance: Provenance
    is_whole: bool  # False: an interrupt ended it, and only some problems were answered
    rows: list[RelaxedRow]
    ratios: dict[str, float]
    is_promised: bool  # that tau = 0 gives the tokens of plain decoding
    thresholds: KeyThresholds
    rejection_sample_method: str
    num_draft_tokens: int
    draft_p_min: float
    draft_quantization: str
    dtype: str
    batch_size: int
    temperature: float
    max_tokens: int
    numerics: str
    prompts_sha256: str

    @property
    def mistakes(self) -> list[str]:
        """Sentences about what must not be."""
        return [
            f"{row.task}, tau 0: {row.num_problems - row.num_same_as_plain} answers are not those of plain decoding"
            for row in self.rows
            if self.is_promised and row.tau == 0.0 and row.num_same_as_plain < row.num_problems
        ]


def relaxed_rows(task: Task, jobs: Sequence[Job], runs: Sequence[Runs]) -> list[RelaxedRow]:
    """A row for each way of decoding.

    Args:
        jobs: of this task's problems; the first ones were answered.
        runs: plain decoding and tau = 0 first, graded.
    """
    plain, strict = runs[:2]
    return [_row(task, jobs[: len(plain.answers)], each, plain, strict) for each in runs]


def _row(task: Task, jobs: Sequence[Job], runs: Runs, plain: Runs, strict: Runs) -> RelaxedRow:
    acceptance, comparison = runs.acceptance, compare(jobs, plain.answers, runs.answers)
    pairs = list(zip(strict.is_right, runs.is_right, strict=True))
    return RelaxedRow(
        task=task.value,
        tau=runs.tau,
        num_problems=len(jobs),
        tokens_per_s=round(sum(runs.num_tokens) / sum(runs.seconds), 3),
        vs_strict=runs.over(strict) if runs.tau else None,
        vs_plain=None if runs.tau is None else runs.over(plain),
        acceptance_length=runs.acceptance_length,
        block_efficiency=round(acceptance.block_efficiency, 3),
        num_accepted_tokens=acceptance.num_accepted_tokens,
        num_relaxed_tokens=acceptance.num_relaxed_tokens,
        accuracy=share_of(sum(runs.is_right), len(jobs)).rounded(4),
        num_right=sum(runs.is_right),
        num_lost=sum(before and not now for before, now in pairs),
        num_gained=sum(now and not before for before, now in pairs),
        num_timed_out=runs.outcomes.count("timed out"),
        num_cut=sum(answer.finish_reason == "length" for answer in runs.answers),
        num_same_as_plain=comparison.num_identical,
        partial_match_rate=round(comparison.partial_match_rate, 4),
        outcomes="".join("1" if each else "0" for each in runs.is_right),
        group_tokens=runs.num_tokens,
        group_seconds=[round(each, 4) for each in runs.seconds],
    )


def ratios_of(rows: Sequence[RelaxedRow]) -> dict[str, float]:
    """For each task and tau: speeds over strict and plain decoding, acceptance length over that of tau = 0."""
    ratios = {}
    strict = {row.task: row for row in rows if row.tau == 0.0}
    for row in rows:
        name = f"{row.task.lower()}_tau_{row.name}"
        if row.vs_plain is not None:
            ratios[f"{name}_speed_vs_plain"] = row.vs_plain.value
        if row.vs_strict is not None:
            ratios[f"{name}_speed_vs_strict"] = row.vs_strict.value
        base = strict[row.task].acceptance_length
        if row.tau and row.acceptance_length and base:
            ratios[f"{name}_acceptance_length_vs_strict"] = round(row.acceptance_length.value / base.value, 3)
    return ratios


def findings(rows: Sequence[RelaxedRow]) -> list[str]:
    """Sentences that say what the intervals show, and where they show nothing."""
    found = []
    for task in dict.fromkeys(row.task for row in rows):
        own = [row for row in rows if row.task == task and row.tau is not None]
        found += [*_speed_findings(task, own), _accuracy_finding(task, own)]
        if num_timed_out := sum(row.num_timed_out for row in own):
            found.append(f"{task}: {num_timed_out} programs did not end in time and count as wrong")
    return found


def _speed_findings(task: str, rows: Sequence[RelaxedRow]) -> list[str]:
    verdicts: dict[str, Callable[[Estimate], bool]] = {
        "faster than tau 0": lambda ratio: ratio.low > 1.0,
        "slower than tau 0": lambda ratio: ratio.high < 1.0,
        "no difference in speed that this sample shows": lambda ratio: ratio.low <= 1.0 <= ratio.high,
    }
    found = []
    for verdict, holds in verdicts.items():
        names = [row.name for row in rows if row.vs_strict is not None and holds(row.vs_strict)]
        if names:
            found.append(f"{task}, tau {', '.join(names)}: {verdict}")
    return found


def _accuracy_finding(task: str, rows: Sequence[RelaxedRow]) -> str:
    apart = [
        f"{one.name} and {other.name}"
        for one, other in combinations(rows, 2)
        if not one.accuracy.overlaps(other.accuracy)
    ]
    if not apart:
        return f"{task}: the accuracies' intervals of all taus overlap: no difference that this sample shows"
    return f"{task}: the accuracies' intervals do not overlap for tau {'; '.join(apart)}"


WAY: Final = (Column("task", "task", is_text=True), Column("tau", "name"))
SPEED_COLUMNS: Final = (
    *WAY,
    Column("tokens/s", "tokens_per_s", ".2f"),
    Column("over tau 0", "vs_strict", ".2f"),
    Column("over plain", "vs_plain", ".2f"),
    Column("acceptance length", "acceptance_length", ".2f"),
    Column("block efficiency", "block_efficiency", ".2f"),
    Column("relaxed", "relaxed_share", ".1%"),
)
ACCURACY_COLUMNS: Final = (
    *WAY,
    Column("solved", share("num_right", "num_problems")),
    Column("accuracy, %", lambda row: row.accuracy.times(100), ".1f"),
    Column("lost", "num_lost"),
    Column("gained", "num_gained"),
    Column("cut", "num_cut"),
    Column("as plain", share("num_same_as_plain", "num_problems")),
    Column("same until", "partial_match_rate", ".0%"),
)
SPEED_TITLE: Final = (
    "tokens/s with prompts; 95% intervals: Student's, over groups for speeds, over answers for acceptance lengths; "
    "relaxed = share of the accepted draft tokens that strict verification refuses"
)
ACCURACY_TITLE: Final = (
    "accuracy with Wilson's 95% interval; lost, gained = problems, against tau 0; cut = ended by --max-tokens; "
    "same until = share of plain decoding's tokens before the first difference"
)


def blocks(report: RelaxedReport) -> list[Block]:
    """What people read."""
    rows, limits = report.rows, report.thresholds
    num = sum((row.vs_strict is not None) + (row.vs_plain is not None) + 1 for row in rows)
    return [
        _table(SPEED_TITLE, SPEED_COLUMNS, rows),
        _table(ACCURACY_TITLE, ACCURACY_COLUMNS, rows),
        f"numerics: {report.numerics}",
        f"rule: relaxed {report.rejection_sample_method}; lambda_1 {limits.lambda_1:.4g}, lambda_2 "
        f"{limits.lambda_2:.4g}, lambda_3 {limits.lambda_3:.4g}; groups of {report.batch_size}, K = "
        f"{report.num_draft_tokens}, T = {report.temperature:g}",
        *findings(rows),
        f"a 95% interval misses the true value in one of 20 samples, and there are {num} intervals of speeds and "
        "accuracies",
        *([] if report.is_whole else ["interrupted: these are the problems that were answered in every way"]),
    ]


def _table(title: str, columns: Sequence[Column], rows: Sequence[RelaxedRow]) -> Table:
    return Table(title, columns, rows, section="task", is_bold=lambda row: row.tau == 0.0)


def draw(rows: Sequence[RelaxedRow], path: Path) -> None:
    """Save three panels over tau, with intervals: speed over tau = 0, acceptance length, accuracy.

    Raises: ConfigError if matplotlib is not installed or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    speed, length, accuracy = figure.subplots(1, 3)
    one = Estimate(1.0, 1.0, 1.0)
    _lines(speed, rows, lambda row: row.vs_strict or one)
    speed.axhline(1.0, color="0.6", linewidth=0.8, zorder=0)
    speed.set_ylabel("tokens/s over those of tau = 0 (times)")
    _lines(length, rows, lambda row: row.acceptance_length or one)
    length.set_ylabel("acceptance length (tokens per round with a draft)")
    _lines(accuracy, rows, lambda row: row.accuracy.times(100))
    accuracy.set_ylabel("problems solved (%)")
    for panel in (speed, length, accuracy):
        panel.set_xlabel("relaxation tau (0 = strict)")
    speed.legend()
    figure.suptitle("Bars are 95% intervals")
    save(figure, path)


def _lines(panel: Any, rows: Sequence[RelaxedRow], value_of: Callable[[RelaxedRow], Estimate]) -> None:
    """One line for each task. The tasks are a little apart, so that their bars do not hide each other."""
    for number, task in enumerate(dict.fromkeys(row.task for row in rows)):
        own = [row for row in rows if row.task == task and row.tau is not None]
        values = [value_of(row) for row in own]
        panel.errorbar(
            [(row.tau or 0.0) + 0.006 * number for row in own],
            [each.value for each in values],
            yerr=[[each.value - each.low for each in values], [each.high - each.value for each in values]],
            capsize=3,
            label=task,
            **look(number),
        )
