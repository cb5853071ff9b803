"""`starspec bench async`: one target and one hub, with drafting that waits for verdicts and drafting that does not.

AMUSD's Table I on synthetic accelerators with the paper's step times (draft 10 ms, verification 25 ms, a token of plain
decoding 22 ms), with acceptance rates at which synchronous speculation at its best length is as fast as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

from starspec.bench.star.processes import Turn
from starspec.bench.star.serving import ServedTurn, StarTargets, serve_turn
from starspec.config import HubConfig, ModelConfig, RunAhead
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table, ratio_lines

DRAFT_MS: Final = 10.0
VERIFY_MS: Final = 25.0
PLAIN_MS: Final = 22.0
MAX_LENGTH: Final = 8  # of a chain that nobody waits for: it takes longer than three verifications
MAX_MODEL_LEN: Final = 4096
AHEAD: Final[tuple[RunAhead, ...]] = ("chain", "outcomes", "auto")

RoundRobin = dict[tuple[RunAhead, int], list[ServedTurn]]  # of each setting, by repeat


@dataclass(frozen=True, slots=True)
class PaperCase:
    """A data set of the paper: times over plain decoding, and the acceptance that explains the synchronous one."""

    name: str
    synchronous: float
    asynchronous: float
    alpha: float  # at which the best length, `length`, gives the speed-up `synchronous`
    length: int


CASES: Final = (
    PaperCase("MT-Bench", 1.06, 1.31, 0.686, 1),
    PaperCase("HumanEval", 1.24, 1.57, 0.832, 3),
    PaperCase("RefactorChat", 1.43, 1.96, 0.916, 4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncPlan:
    """How much to measure, and with which lengths run-ahead prepares outcomes."""

    warm_up_s: float = 2.0
    seconds: float = 20.0
    num_repeats: int = 3
    outcome_lengths: tuple[int, ...] = (1, 2, 3, 4)

    def settings(self, case: PaperCase) -> list[tuple[RunAhead, int]]:
        """Synchronous drafting with the length that is best in theory, and with its neighbours."""
        off: list[tuple[RunAhead, int]] = [
            ("off", length) for length in range(max(1, case.length - 1), case.length + 2)
        ]
        outcomes: list[tuple[RunAhead, int]] = [("outcomes", length) for length in self.outcome_lengths]
        return [*off, ("chain", MAX_LENGTH), *outcomes, ("auto", case.length)]

    @property
    def num_turns(self) -> int:
        return self.num_repeats * sum(len(self.settings(case)) for case in CASES)


QUICK = AsyncPlan(warm_up_s=1.0, seconds=6.0, num_repeats=1, outcome_lengths=(1, 2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncRow:
    """One setting at one acceptance rate: the median turn of the repeats."""

    case: str
    alpha: float
    run_ahead: str
    num_draft_tokens: int  # at most
    ms_per_token: float
    vs_plain: float  # against PLAIN_MS
    tokens_per_round: float
    hit_rate: float
    load: float  # of the hub
    paper_vs_plain: float | None  # what the paper measured; synchronous for off, asynchronous for chain


def measure_async(plan: AsyncPlan, advance: Callable[[str], None]) -> Report:
    """Serve one synthetic target with each setting.

    Args:
        advance: called with what is about to be measured.
    Raises: PeerLost if a process dies or hangs.
    """
    rows: list[AsyncRow] = []
    gains: dict[str, dict[RunAhead, float]] = {}
    for case in CASES:
        settings = plan.settings(case)
        served: RoundRobin = {setting: [] for setting in settings}
        with StarTargets(1, _model(case, "target", VERIFY_MS)) as targets:
            for seed in range(plan.num_repeats):
                for setting in settings:
                    advance(f"{case.name}: {setting[0]}, {setting[1]} tokens")
                    served[setting].append(_serve(plan, case, targets, *setting, seed))
        rows += [_row(case, *setting, turns) for setting, turns in served.items()]
        gains[case.name] = {kind: _gain(served, kind) for kind in AHEAD}
    notes = {"synthetic": True, "draft_ms": DRAFT_MS, "verify_ms": VERIFY_MS, "plain_ms": PLAIN_MS}
    return Report(collect_provenance(), rows, _ratios(gains), notes)


def _serve(
    plan: AsyncPlan, case: PaperCase, targets: StarTargets, run_ahead: RunAhead, length: int, seed: int
) -> ServedTurn:
    turn = Turn(num_draft_tokens=length, warm_up_s=plan.warm_up_s, seconds=plan.seconds, seed=seed)
    return serve_turn(_model(case, "draft", DRAFT_MS), HubConfig(port=0, run_ahead=run_ahead), targets, 1, turn)


def _row(case: PaperCase, run_ahead: RunAhead, length: int, turns: Sequence[ServedTurn]) -> AsyncRow:
    middle = sorted(turns, key=lambda each: each.tokens_per_s)[len(turns) // 2]
    paper = {"off": case.synchronous, "chain": case.asynchronous}
    return AsyncRow(
        case=case.name,
        alpha=case.alpha,
        run_ahead=run_ahead,
        num_draft_tokens=length,
        ms_per_token=1e3 / middle.tokens_per_s,
        vs_plain=middle.tokens_per_s * PLAIN_MS / 1e3,
        tokens_per_round=middle.tokens_per_round,
        hit_rate=middle.hub.hit_rate,
        load=middle.hub.load,
        paper_vs_plain=paper.get(run_ahead),
    )


def _best(served: RoundRobin, run_ahead: RunAhead) -> list[ServedTurn]:
    """The turns of the fastest setting of this kind."""
    of_kind = [turns for setting, turns in served.items() if setting[0] == run_ahead]
    return max(of_kind, key=lambda turns: median(each.tokens_per_s for each in turns))


def _gain(served: RoundRobin, run_ahead: RunAhead) -> float:
    """Speed-up over synchronous drafting, both with their best setting; the median over the repeats."""
    pairs = zip(_best(served, run_ahead), _best(served, "off"), strict=True)
    return median(one.tokens_per_s / other.tokens_per_s for one, other in pairs)


def _ratios(gains: Mapping[str, Mapping[RunAhead, float]]) -> dict[str, float]:
    """For each case, and the means over the cases."""
    ratios: dict[str, float] = {}
    for kind in AHEAD:
        ratios |= {f"{kind}_vs_sync_{name}": each[kind] for name, each in gains.items()}
        ratios[f"{kind}_vs_sync_mean"] = mean(each[kind] for each in gains.values())
    return ratios


def _model(case: PaperCase, role: str, step_ms: float) -> ModelConfig:
    name = f"synthetic:role={role},alpha={case.alpha},step_ms={step_ms}"
    return ModelConfig(model=name, num_rows=1, max_model_len=MAX_MODEL_LEN, num_threads=1)


COLUMNS = (
    Column("acceptance as in", lambda row: f"{row.case} ({row.alpha})"),
    Column("run-ahead", "run_ahead"),
    Column("tokens", "num_draft_tokens"),
    Column("ms a token", "ms_per_token", ".2f"),
    Column("x plain", "vs_plain", ".2f"),
    Column("paper", "paper_vs_plain", ".2f"),
    Column("tokens a round", "tokens_per_round", ".2f"),
    Column("hits", "hit_rate", ".0%"),
    Column("load", "load", ".0%"),
)
TITLE = "synthetic accelerators with AMUSD's step times; paper: its Table I"


def blocks(report: Report) -> list[Block]:
    """What people read: one row for each setting at each acceptance."""
    return [Table(TITLE, COLUMNS, report.rows), *ratio_lines(report.ratios)]
