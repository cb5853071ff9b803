"""`starspec bench shard`: plain, synchronous and in flight, in virtual time and by processes, beside DSD's equations.

The coordinator, the stages' protocol and the last stage's verdicts are the real ones. In virtual time computing and
links are modelled. The processes have sockets, and a lab's links; only their computing is modelled: they sleep. Times
are in units of t_0, the time of one stage's forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from starspec.bench.shard.real_pipe import coordinator, real_stages
from starspec.bench.shard.streams import Planning, Streams
from starspec.bench.shard.virtual_pipe import VirtualPipe
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table
from starspec.policy.pipe_depth import MAX_DEPTH, PipePlan
from starspec.policy.traversal import PaperPipeline, Pipeline, StageTime, expected_tokens

NUM_NODES: Final = (2, 4, 8)
LINKS: Final = (0.0, 3.0, 5.0, 10.0)  # t_0
NUM_ACCEPTED: Final = 4  # k of equations 3 to 5
HUMAN_EVAL: Final = 3.86  # DSD's Table 2: average length, of gamma 8, N = 4
TABLE_2: Final = 2.56  # and its speedup, with relaxed verification
AT_EIGHT_NODES: Final = 0.37  # communication that is saved, as DSD's text says; not by its equation 5
MAX_DIFFERENCE: Final = 0.15  # of processes from virtual time, as a share
MAX_STREAMS: Final = 4
LONGEST: Final = 8  # draft tokens of a window
DRAFT_S: Final = 0.1  # a draft token, in t_0
LINK: Final = 5.0  # one way, in t_0
FOUR: Final = Pipeline.even(4, StageTime(one_s=1.0), LINK)
AS_TABLE_2, HIGH, LOW = "3.86 tokens a round", "acceptance 0.8", "acceptance 0.3"  # scenes
PLAIN, SYNCHRONOUS, SYNCHRONOUS_4, IN_FLIGHT = "plain", "synchronous", "synchronous, 4 draft tokens", "in flight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """How much is decoded."""

    num_tokens: int = 10_000  # of each sequence with drafts, in virtual time
    num_plain_tokens: int = 100  # without: each takes as long as the others
    num_real_tokens: int = 120  # of each sequence with drafts, by processes
    num_real_plain_tokens: int = 20
    stage_ms: float = 20.0  # t_0 of the processes


QUICK: Final = ShardPlan(
    num_tokens=1500, num_plain_tokens=20, num_real_tokens=40, num_real_plain_tokens=6, stage_ms=10.0
)


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
    speed: float  # of all streams, in virtual time
    real_speed: float  # of processes behind a lab's links
    predicted_speed: float  # in virtual time, of as few tokens

    @property
    def difference(self) -> float:
        """Of the processes from their prediction."""
        return self.real_speed / self.predicted_speed - 1.0


class Way(NamedTuple):
    """What is decoded, and how."""

    scene: str
    mode: str
    num_streams: int
    alpha: float
    planning: Planning


Decode = Callable[[Way, int], float]
"""(way, tokens of each stream) -> tokens of all streams in a time of t_0."""


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
    pipe = VirtualPipe(pipeline, num_streams, _max_len(num_tokens))
    verifier = pipe.verifier(None)
    streams = Streams(pipe.clock, verifier, num_streams, planning, alpha=alpha, draft_s=draft_s)
    return streams.run(num_tokens)


@contextmanager
def four_stages(plan: ShardPlan) -> Iterator[Decode]:
    """Four stages as processes. Yields: as `decode`, of a way and so many tokens. Raises: as real_stages."""
    stage_s, max_len = plan.stage_ms / 1e3, _max_len(max(plan.num_real_tokens, plan.num_real_plain_tokens))

    with real_stages(_four(stage_s), MAX_STREAMS, max_len) as endpoints:

        def decode_really(way: Way, num_tokens: int) -> float:
            with coordinator(endpoints, max_len) as verifier:
                draft_s, planning = DRAFT_S * stage_s, way.planning
                streams = Streams(time.monotonic, verifier, way.num_streams, planning, alpha=way.alpha, draft_s=draft_s)
                return streams.run(num_tokens) * stage_s

        yield decode_really


def _max_len(num_tokens: int) -> int:
    return num_tokens + (MAX_DEPTH + 2) * (LONGEST + 1)


def _four(stage_s: float) -> Pipeline:
    return Pipeline.even(4, StageTime(one_s=stage_s), LINK * stage_s)


def always(num_draft_tokens: int, depth: int = 1) -> Planning:
    """The same plan in every window."""
    return lambda _streams: PipePlan(num_draft_tokens, depth)


def as_measured(streams: Streams) -> PipePlan:
    """What the measured traversals and acceptance say."""
    alpha = min(0.99, (1 + streams.num_accepted) / (2 + streams.num_verified))
    return streams.windows.choose(alpha, LONGEST, streams.num_streams)


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


def ways() -> list[Way]:
    """All ways to decode."""
    as_table_2 = alpha_of(HUMAN_EVAL, LONGEST)
    best = best_length(0.8)
    return [
        Way(AS_TABLE_2, PLAIN, 1, 0.0, always(0)),
        Way(AS_TABLE_2, SYNCHRONOUS, 1, as_table_2, always(LONGEST)),
        Way(HIGH, SYNCHRONOUS, 1, 0.8, always(best)),
        Way(HIGH, SYNCHRONOUS_4, 1, 0.8, always(4)),
        Way(HIGH, IN_FLIGHT, 1, 0.8, as_measured),
        Way(HIGH, SYNCHRONOUS, 4, 0.8, always(best)),
        Way(HIGH, IN_FLIGHT, 4, 0.8, as_measured),
        Way(LOW, IN_FLIGHT, 1, 0.3, as_measured),
    ]


def measure_modes(plan: ShardPlan, advance: Callable[[str], None]) -> list[ModeRow]:
    """All ways to decode. Args: advance: called with each of `ways()` before it begins. Raises: as real_stages."""
    rows = []
    with four_stages(plan) as decode_really:
        for way in ways():
            advance(f"{way.scene}, {way.mode}, {way.num_streams} streams")
            is_plain = way.mode == PLAIN
            num_real = plan.num_real_plain_tokens if is_plain else plan.num_real_tokens
            num_virtual = plan.num_plain_tokens if is_plain else plan.num_tokens
            rows.append(
                ModeRow(
                    scene=way.scene,
                    mode=way.mode,
                    num_streams=way.num_streams,
                    speed=decode_virtually(way, num_virtual) * FOUR.traversal_s(1),
                    real_speed=decode_really(way, num_real) * FOUR.traversal_s(1),
                    predicted_speed=decode_virtually(way, num_real) * FOUR.traversal_s(1),
                )
            )
    return rows


def decode_virtually(way: Way, num_tokens: int) -> float:
    """As `decode`, of four stages."""
    return decode(FOUR, way.planning, num_tokens, alpha=way.alpha, num_streams=way.num_streams)


def measure_shard(plan: ShardPlan, advance: Callable[[str], None]) -> Report:
    """Everything, in virtual time and by processes. Raises: as real_stages."""
    rows = measure_modes(plan, advance)
    virtual = {f"{name}_virtual": ratio for name, ratio in ratios_of(rows, lambda row: row.speed).items()}
    ratios = {**ratios_of(rows, lambda row: row.real_speed), **virtual, **bounds_of(rows)}
    notes = {"synthetic": True, "stage_ms": plan.stage_ms, "equations": measure_equations()}
    return Report(collect_provenance(), rows, ratios, notes)


def ratios_of(rows: Sequence[ModeRow], speed_of: Callable[[ModeRow], float]) -> dict[str, float]:
    """The figures to quote."""
    speed = {(each.scene, each.mode, each.num_streams): speed_of(each) for each in rows}
    plain, synchronous = speed[AS_TABLE_2, PLAIN, 1], speed[HIGH, SYNCHRONOUS, 1]
    return {
        "sync_vs_plain": speed[AS_TABLE_2, SYNCHRONOUS, 1] / plain,
        "in_flight_vs_sync_1": speed[HIGH, IN_FLIGHT, 1] / synchronous,
        "in_flight_vs_sync_1_of_4": speed[HIGH, IN_FLIGHT, 1] / speed[HIGH, SYNCHRONOUS_4, 1],
        "in_flight_vs_sync_4": speed[HIGH, IN_FLIGHT, 4] / speed[HIGH, SYNCHRONOUS, 4],
        "in_flight_vs_sync_4_one_by_one": speed[HIGH, IN_FLIGHT, 4] / synchronous,
        "low_acceptance_vs_plain": speed[LOW, IN_FLIGHT, 1] / plain,
    }


def bounds_of(rows: Sequence[ModeRow]) -> dict[str, float]:
    """What formulas say; `_bound` = what no depth and no length can exceed."""
    [synchronous] = [each.speed for each in rows if (each.scene, each.mode, each.num_streams) == (HIGH, SYNCHRONOUS, 1)]
    paper = PaperPipeline(num_nodes=4, compute_s=1.0, link_s=LINK)
    return {
        "sync_vs_plain_by_formula": FOUR.speedup(HUMAN_EVAL, LONGEST, LONGEST * DRAFT_S),
        "sync_vs_plain_by_equation_9": paper.speedup(HUMAN_EVAL, LONGEST),
        "in_flight_vs_sync_1_bound": FOUR.most_tokens_per_s(0.8) * FOUR.traversal_s(1) / synchronous,
    }


def mistakes_of(report: Report) -> list[str]:
    """Sentences about ways to decode in which processes are not as fast as virtual time says."""
    return [
        f"{row.scene}, {row.mode}, {row.num_streams} streams: processes differ by {row.difference:+.1%} from virtual "
        f"time, and a quiet machine by at most {MAX_DIFFERENCE:.0%}"
        for row in report.rows
        if abs(row.difference) > MAX_DIFFERENCE
    ]


def blocks(report: Report) -> list[Block]:
    """The equations beside virtual time, and the ways to decode."""
    equations = Table(
        f"DSD's equations 3 to 5 for k = {NUM_ACCEPTED}, in t_0: as printed, and in virtual time; the paper's text has "
        f"about {AT_EIGHT_NODES:.0%} at eight nodes",
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
        f"four stages, links of {LINK:g} t_0, drafts of {DRAFT_S:g} t_0 a token; tokens a traversal in virtual time, "
        f"by processes (t_0 = {report.notes['stage_ms']:g} ms) and of as few tokens in virtual time",
        [
            Column("scene", "scene"),
            Column("decoding", "mode", is_text=True),
            Column("streams", "num_streams"),
            Column("virtual", "speed", ".2f"),
            Column("processes", "real_speed", ".2f"),
            Column("predicted", "predicted_speed", ".2f"),
            Column("difference", "difference", "+.1%"),
        ],
        report.rows,
        section="scene",
    )
    ratios = ", ".join(f"{name} {value:.2f}x" for name, value in report.ratios.items())
    return [equations, modes, f"{ratios}. DSD's Table 2 has {TABLE_2:g}x, with relaxed verification."]
