"""`starspec bench shard`: plain, synchronous and in flight, in virtual time, beside DSD's equations and ours.

The coordinator, the stages' protocol and the last stage's verdicts are the real ones. Only computing and links are
modelled. Times are in units of t_0, the time of one stage's forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from starspec.bench.shard.streams import Streams
from starspec.bench.shard.virtual_pipe import VirtualPipe
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table
from starspec.policy.pipe_depth import MAX_DEPTH, PipePlan, PipeTimes, plan_windows
from starspec.policy.traversal import PaperPipeline, Pipeline, StageTime, expected_tokens

NUM_NODES: Final = (2, 4, 8)
LINKS: Final = (0.0, 3.0, 5.0, 10.0)  # t_0
NUM_ACCEPTED: Final = 4  # k of equations 3 to 5
HUMAN_EVAL: Final = 3.86  # DSD's Table 2: average length, of gamma 8, N = 4
TABLE_2: Final = 2.56  # and its speedup, with relaxed verification
LONGEST: Final = 8  # draft tokens of a window
DRAFT_S: Final = 0.1  # a draft token, in t_0
FOUR: Final = Pipeline.even(4, StageTime(one_s=1.0), 5.0)
Planning = Callable[[PipeTimes, Streams], PipePlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """How much is decoded."""

    num_tokens: int = 10_000  # of each sequence with drafts
    num_plain_tokens: int = 100  # without: each takes as long as the others


QUICK: Final = ShardPlan(num_tokens=1500, num_plain_tokens=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationRow:
    """DSD's equations 3 to 5 beside virtual time, for k tokens. Times are in t_0."""

    num_nodes: int
    link: float
    paper_standard: float  # eq. 3
    standard: float
    paper_speculative: float  # eq. 4
    speculative: float
    paper_reduction: float  # eq. 5: of all time
    communication_reduction: float  # of the time on links, the way back included


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRow:
    """One way to decode with four stages. Speed is in tokens per traversal of a single token."""

    scene: str
    mode: str
    num_streams: int
    speed: float  # of all streams


def decode(
    pipeline: Pipeline,
    planning: Planning,
    num_tokens: int,
    *,
    alpha: float = 0.0,
    num_streams: int = 1,
    draft_s: float = DRAFT_S,
) -> float:
    """Tokens a second of all streams, in virtual time."""
    pipe = VirtualPipe(pipeline, num_streams, num_tokens + (MAX_DEPTH + 2) * (LONGEST + 1))
    verifier = pipe.verifier(None)

    def plan() -> PipePlan:
        return planning(verifier.traversals, streams)

    streams = Streams(pipe, verifier, num_streams, plan, alpha=alpha, draft_s=draft_s)
    return streams.run(num_tokens)


def always(num_draft_tokens: int, depth: int = 1) -> Planning:
    """The same plan in every window."""
    return lambda _times, _streams: PipePlan(num_draft_tokens, depth)


def as_measured(num_streams: int) -> Planning:
    """What the measured traversals and acceptance say."""

    def planning(times: PipeTimes, streams: Streams) -> PipePlan:
        alpha = min(0.99, (1 + streams.num_accepted) / (2 + streams.num_verified))
        return plan_windows(times.pipeline, alpha, DRAFT_S, LONGEST, MAX_DEPTH, num_streams)

    return planning


def measure_equations() -> list[EquationRow]:
    """Eqs. 3 to 5 for all nodes and links. As in the paper no link leads back, and k tokens cost k forwards."""
    rows = []
    for num_nodes in NUM_NODES:
        for link in LINKS:
            share = StageTime(one_s=1.0 / num_nodes, further_s=1.0 / num_nodes)
            pipeline = Pipeline(stages=[share] * num_nodes, hops_s=[link] * (num_nodes - 1), return_s=0.0)
            paper = PaperPipeline(num_nodes=num_nodes, compute_s=1.0, link_s=link)
            plain = decode(pipeline, always(0), NUM_ACCEPTED, draft_s=0.0)
            drafted = decode(pipeline, always(NUM_ACCEPTED - 1), NUM_ACCEPTED, alpha=1.0, draft_s=0.0)
            rows.append(
                EquationRow(
                    num_nodes=num_nodes,
                    link=link,
                    paper_standard=paper.standard_s(NUM_ACCEPTED),
                    standard=NUM_ACCEPTED / plain,
                    paper_speculative=paper.speculative_s(NUM_ACCEPTED),
                    speculative=NUM_ACCEPTED / drafted,
                    paper_reduction=paper.reduction(NUM_ACCEPTED),
                    communication_reduction=pipeline.communication_reduction(NUM_ACCEPTED),
                )
            )
    return rows


def alpha_of(tokens_per_round: float, num_draft_tokens: int) -> float:
    """The acceptance of each draft token with which a round yields so many tokens."""
    low, high = 0.0, 1.0 - 1e-9
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, num_draft_tokens) < tokens_per_round else (low, middle)
    return low


def best_length(alpha: float) -> int:
    """Of synchronous rounds, with hindsight."""
    return max(range(LONGEST + 1), key=lambda each: FOUR.tokens_per_s(alpha, each, 1, each * DRAFT_S))


def measure_modes(plan: ShardPlan, advance: Callable[[str], None]) -> list[ModeRow]:
    """All ways of all scenes. Args: advance: called with each that is done."""
    as_table_2 = alpha_of(HUMAN_EVAL, LONGEST)
    best = best_length(0.8)
    ways: list[tuple[str, str, int, float, Planning]] = [
        ("3.86 tokens a round", "plain", 1, 0.0, always(0)),
        ("3.86 tokens a round", "synchronous", 1, as_table_2, always(LONGEST)),
        ("acceptance 0.8", "synchronous", 1, 0.8, always(best)),
        ("acceptance 0.8", "synchronous, 4 draft tokens", 1, 0.8, always(4)),
        ("acceptance 0.8", "in flight", 1, 0.8, as_measured(1)),
        ("acceptance 0.8", "synchronous", 4, 0.8, always(best)),
        ("acceptance 0.8", "in flight", 4, 0.8, as_measured(4)),
        ("acceptance 0.3", "in flight", 1, 0.3, as_measured(1)),
    ]
    rows = []
    for scene, mode, num_streams, alpha, planning in ways:
        num_tokens = plan.num_plain_tokens if mode == "plain" else plan.num_tokens
        speed = decode(FOUR, planning, num_tokens, alpha=alpha, num_streams=num_streams) * FOUR.traversal_s(1)
        rows.append(ModeRow(scene=scene, mode=mode, num_streams=num_streams, speed=speed))
        advance(f"{scene}, {mode}, {num_streams} streams")
    return rows


def measure_shard(plan: ShardPlan, advance: Callable[[str], None]) -> Report:
    """Everything in virtual time."""
    rows = measure_modes(plan, advance)
    return Report(collect_provenance(), rows, ratios_of(rows), {"synthetic": True, "equations": measure_equations()})


def ratios_of(rows: Sequence[ModeRow]) -> dict[str, float]:
    """The figures to quote; `_bound` = what no depth and no length can exceed."""
    speed = {(each.scene, each.mode, each.num_streams): each.speed for each in rows}
    plain = speed["3.86 tokens a round", "plain", 1]
    ahead = speed["acceptance 0.8", "in flight", 1]
    synchronous = speed["acceptance 0.8", "synchronous", 1]
    together = speed["acceptance 0.8", "in flight", 4]
    return {
        "sync_vs_plain": speed["3.86 tokens a round", "synchronous", 1] / plain,
        "sync_vs_plain_by_formula": FOUR.speedup(HUMAN_EVAL, LONGEST, LONGEST * DRAFT_S),
        "sync_vs_plain_by_equation_9": PaperPipeline(num_nodes=4, compute_s=1.0, link_s=5.0).speedup(
            HUMAN_EVAL, LONGEST
        ),
        "in_flight_vs_sync_1": ahead / synchronous,
        "in_flight_vs_sync_1_bound": FOUR.most_tokens_per_s(0.8) * FOUR.traversal_s(1) / synchronous,
        "in_flight_vs_sync_1_of_4": ahead / speed["acceptance 0.8", "synchronous, 4 draft tokens", 1],
        "in_flight_vs_sync_4": together / speed["acceptance 0.8", "synchronous", 4],
        "in_flight_vs_sync_4_one_by_one": together / synchronous,
        "low_acceptance_vs_plain": speed["acceptance 0.3", "in flight", 1] / plain,
    }


def blocks(report: Report) -> list[Block]:
    """The equations beside virtual time, and the ways to decode."""
    equations = Table(
        f"DSD's equations 3 to 5 for k = {NUM_ACCEPTED}, in t_0: as printed, and in virtual time",
        [
            Column("nodes", "num_nodes"),
            Column("link", "link", "g"),
            Column("T_std, eq. 3", "paper_standard", ".1f"),
            Column("here", "standard", ".1f"),
            Column("T_DSD, eq. 4", "paper_speculative", ".1f"),
            Column("here", "speculative", ".1f"),
            Column("R_comm, eq. 5", "paper_reduction", ".0%"),
            Column("of communication", "communication_reduction", ".0%"),
        ],
        report.notes["equations"],
        section="num_nodes",
    )
    modes = Table(
        f"four stages, links of 5 t_0, a draft token takes {DRAFT_S:g} t_0",
        [
            Column("scene", "scene"),
            Column("decoding", "mode", is_text=True),
            Column("streams", "num_streams"),
            Column("tokens a traversal", "speed", ".2f"),
        ],
        report.rows,
        section="scene",
    )
    ratios = ", ".join(f"{name} {value:.2f}x" for name, value in report.ratios.items())
    return [equations, modes, f"{ratios}. DSD's Table 2 has {TABLE_2:g}x, with relaxed verification."]
