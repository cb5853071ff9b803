"""The rows, ratios and sentences of `bench length` with a real pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from starspec.bench.batch.methods import MethodRun
from starspec.bench.length.rivals import PLAIN, POLICIES, Rival, default_rival
from starspec.bench.length.signals import SignalRow, WireRow
from starspec.bench.lossless import mistake_sentences
from starspec.config import Dtype
from starspec.harness.compare import Divergence
from starspec.harness.provenance import Provenance
from starspec.harness.report import Spread
from starspec.stats import AcceptanceStats


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What the rivals are compared in."""

    drafter: str
    category: str
    temperature: float
    batch_size: int

    @property
    def name(self) -> str:
        return f"{self.drafter}, {self.category}, T={self.temperature:g}, batch {self.batch_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalRow:
    """One rival in one cell."""

    cell: Cell
    method: str
    static_length: int | None  # that it always drafts; None = it chooses, or it is plain
    tokens_per_s: Spread  # over the repeats; of rounds with a full batch, without prefill
    vs_plain: float
    vs_static_opt: float | None  # None: no fixed lengths ran in this cell
    draft_length: float  # mean draft tokens of a sequence's round
    acceptance_rate: float
    block_efficiency: float
    num_tokens: int  # emitted in the last repeat
    num_answers: int  # of all repeats; each is compared with plain decoding's
    num_different: int
    num_explained: int  # of those, by a near-tie
    first_divergence: Divergence | None


def rival_rows(
    cell: Cell, runs: dict[Rival, list[MethodRun]], differing: dict[Rival, list[Divergence]]
) -> list[RivalRow]:
    """The rows of one cell, in which plain decoding ran."""
    speeds = {rival: Spread.of([round(run.full_tokens_per_s, 3) for run in found]) for rival, found in runs.items()}
    (plain,) = (speed.median for rival, speed in speeds.items() if rival.is_plain)
    static_opt = max((speed.median for rival, speed in speeds.items() if rival.static_length), default=0.0)
    has_all = any(rival.name in POLICIES for rival in runs)
    return [
        _row(cell, rival, found, speeds[rival], plain, static_opt if has_all else 0.0, differing[rival])
        for rival, found in runs.items()
    ]


def _row(
    cell: Cell,
    rival: Rival,
    runs: Sequence[MethodRun],
    speed: Spread,
    plain: float,
    static_opt: float,
    differing: Sequence[Divergence],
) -> RivalRow:
    """Args: static_opt: 0 = not known."""
    acceptance = AcceptanceStats()
    for answer in runs[-1].served.answers:
        acceptance.add(answer.stats.acceptance)
    return RivalRow(
        cell=cell,
        method=rival.name,
        static_length=rival.static_length,
        tokens_per_s=speed,
        vs_plain=_ratio(speed.median, plain),
        vs_static_opt=_ratio(speed.median, static_opt) if static_opt else None,
        draft_length=round(acceptance.num_draft_tokens / max(1, acceptance.num_forwards), 2),
        acceptance_rate=round(acceptance.acceptance_rate, 3),
        block_efficiency=round(acceptance.block_efficiency, 3),
        num_tokens=runs[-1].served.num_tokens,
        num_answers=sum(len(run.served.answers) for run in runs),
        num_different=len(differing),
        num_explained=sum(each.is_near_tie is True for each in differing),
        first_divergence=next(iter(differing), None),
    )


def _ratio(one: float, other: float) -> float:
    return round(one / other, 3) if other else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """One cell as the table shows it."""

    cell: Cell
    plain: float  # tokens a second
    static_opt: float | None  # the best fixed length with hindsight, tokens a second
    static_opt_length: int | None
    policies: dict[str, RivalRow]
    default: RivalRow
    num_different: int
    num_answers: int

    def vs_static_opt(self, policy: str) -> float | None:
        row = self.policies.get(policy)
        return None if row is None else row.vs_static_opt


def cell_rows(rows: Sequence[RivalRow]) -> list[CellRow]:
    """One for each cell, in the order of the rows."""
    return [_cell_row(cell, [row for row in rows if row.cell == cell]) for cell in _cells(rows)]


def _cells(rows: Iterable[RivalRow]) -> list[Cell]:
    return list(dict.fromkeys(row.cell for row in rows))


def _cell_row(cell: Cell, rows: Sequence[RivalRow]) -> CellRow:
    by_method = {row.method: row for row in rows}
    static = [row for row in rows if row.static_length and row.vs_static_opt is not None]
    best = max(static, key=lambda row: row.tokens_per_s.median, default=None)
    return CellRow(
        cell=cell,
        plain=by_method[PLAIN].tokens_per_s.median,
        static_opt=best.tokens_per_s.median if best else None,
        static_opt_length=best.static_length if best else None,
        policies={name: by_method[name] for name in POLICIES if name in by_method},
        default=by_method[default_rival().name],
        num_different=sum(row.num_different for row in rows),
        num_answers=sum(row.num_answers for row in rows),
    )


def ratios_of(rows: Sequence[RivalRow]) -> dict[str, float]:
    """Means and lowest values over the cells by policy, and the default beside plain decoding by batch size."""
    ratios: dict[str, float] = {}
    for policy in POLICIES:
        found = [row for row in rows if row.method == policy]
        vs_static = [row.vs_static_opt for row in found if row.vs_static_opt is not None]
        if vs_static:
            ratios[f"{policy}_vs_static_opt_mean"] = round(fmean(vs_static), 3)
            ratios[f"{policy}_vs_static_opt_min"] = min(vs_static)
            ratios[f"{policy}_vs_plain_min"] = min(row.vs_plain for row in found)
    defaults = [row for row in rows if row.method == default_rival().name]
    for size in sorted({row.cell.batch_size for row in defaults}):
        vs_plain = [row.vs_plain for row in defaults if row.cell.batch_size == size]
        ratios[f"batch_{size}_vs_plain"] = round(fmean(vs_plain), 3)
    return ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class RealReport:
    """What `starspec bench length` saves of a real pair."""

    provenance: Provenance
    is_whole: bool  # False after an interrupt
    rows: list[RivalRow]
    ratios: dict[str, float]
    signals: list[SignalRow]  # Table II on this pair, and the paper's
    wire: list[WireRow]
    default_method: str  # of the ratios by batch size
    draft_quantization: str
    dtype: Dtype
    numerics: str
    is_promised: bool  # whether these settings promise the tokens of plain decoding
    max_tokens: int
    max_prompt_tokens: int  # longer prompts were left out
    num_repeats: int
    estimated_s: float  # what was expected before
    seconds: float  # what it took, without loading

    @property
    def num_different(self) -> int:
        return sum(row.num_different for row in self.rows)

    @property
    def num_answers(self) -> int:
        return sum(row.num_answers for row in self.rows)

    @property
    def mistakes(self) -> list[str]:
        """A sentence for each kind of difference that must not occur."""
        broken = [row for row in self.rows if self.is_promised and row.num_different]
        unexplained = [row for row in self.rows if row.num_different > row.num_explained]
        return mistake_sentences(*(f"{_names(rows)}: answers differ" if rows else "" for rows in (broken, unexplained)))


def _names(rows: Sequence[RivalRow]) -> str:
    return "; ".join(f"{row.method} ({row.cell.name})" for row in rows)
