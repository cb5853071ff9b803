"""`starspec bench length --synthetic`: every length policy beside every fixed length, in a grid of simulated scenes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, Final

from starspec.bench.length.simulation import Scene, Simulation
from starspec.config.speculative import DOUBT
from starspec.harness.children import in_processes
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table
from starspec.policy.length.adaedl import AdaEdl
from starspec.policy.length.dsde import Dsde
from starspec.policy.length.expected_speed import Candidates, fastest_lengths
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.goodput import Goodput
from starspec.policy.length.round_cost import NO_WAIT
from starspec.policy.length.snapshot import Choice, LengthPolicy, RoundSnapshot
from starspec.speculation.budget import DraftBudget

LENGTHS: Final = (1, 2, 3, 4, 6, 8, 10)  # fixed ones
MOST: Final = DraftBudget.chain(max(LENGTHS))
NUM_WORST: Final = 8  # cells in the second table


@dataclass(frozen=True, slots=True)
class WithoutWaits:
    """vLLM's adaptive verification in short: draft tokens compete by their chance and by what a target step costs.

    What the network and a shared hub cost is not weighed.
    """

    budget: DraftBudget

    def choose(self, snapshot: RoundSnapshot) -> list[Choice]:
        """As LengthPolicy."""
        assert snapshot.costs is not None
        acceptances = [each.acceptance for each in snapshot.sequences]
        rates = [0.0 if each is None else each.rate for each in acceptances]
        limits = [min(self.budget.num_steps, each.limit) for each in snapshot.sequences]
        chosen = fastest_lengths(Candidates(rates, limits), snapshot.costs.steps, NO_WAIT)
        return [Choice.of(self.budget.with_steps(length), "cost") for length in chosen.lengths]


POLICIES: Final[dict[str, LengthPolicy]] = {
    "goodput": Goodput(DraftBudget.chain(MOST.num_steps, DOUBT)),
    "dsde": Dsde(DraftBudget.chain(10)),
    "adaedl": AdaEdl(MOST),
    "confidence": FixedLength(DraftBudget.chain(MOST.num_steps, DOUBT)),
    "without waits": WithoutWaits(MOST),
}


WEIGHING: Final = (Goodput, WithoutWaits)  # those of them that read costs


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPlan:
    """Which scenes, and how much of each."""

    acceptances: tuple[Any, ...] = (0.2, 0.5, 0.8, 0.95, "drifting", "bimodal")
    draft_steps: tuple[float, ...] = (0.03, 0.1, 0.4)
    curves: tuple[Any, ...] = ("flat", "knee", "linear")
    round_trips: tuple[float, ...] = (0.0, 0.5, 2.0)
    batches: tuple[int, ...] = (1, 4, 16)
    nums_targets: tuple[int, ...] = (1, 4, 8)
    num_tokens: int = 1000  # of each sequence
    every: int = 1  # of so many scenes one is run

    @property
    def scenes(self) -> list[Scene]:
        sides = (self.acceptances, self.draft_steps, self.curves, self.round_trips, self.batches, self.nums_targets)
        return [Scene(*sides) for sides in product(*sides)][:: self.every]


QUICK = GridPlan(every=37)  # prime to the sides, so that all their values occur


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow:
    """One scene. Speeds are in tokens per target step."""

    scene: dict[str, Any]
    plain: float
    static_opt: float  # the best fixed length, known with hindsight
    static_opt_length: int
    policies: dict[str, float]

    def vs_static_opt(self, policy: str) -> float:
        return self.policies[policy] / self.static_opt

    def vs_plain(self, policy: str) -> float:
        return self.policies[policy] / self.plain

    @property
    def what(self) -> str:
        """The scene, as text."""
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.scene.items())


def measure_scene(scene: Scene, num_tokens: int) -> LengthRow:
    """Run every policy and every fixed length in one scene."""

    def speed(policy: LengthPolicy) -> float:
        return Simulation(scene, policy, weighs_costs=isinstance(policy, WEIGHING)).run(num_tokens)

    fixed = {length: speed(FixedLength(DraftBudget.chain(length))) for length in LENGTHS}
    best = max(fixed, key=fixed.__getitem__)
    return LengthRow(
        scene=asdict(scene),
        plain=speed(FixedLength(DraftBudget.chain(0))),
        static_opt=fixed[best],
        static_opt_length=best,
        policies={name: speed(policy) for name, policy in POLICIES.items()},
    )


def measure_grid(plan: GridPlan, advance: Callable[[str], None]) -> Report:
    """Run all scenes, each processor one at a time.

    Args:
        advance: called with each scene that is done.
    """
    rows: list[LengthRow] = []
    with in_processes(partial(measure_scene, num_tokens=plan.num_tokens), plan.scenes) as found:
        for row in found:
            advance(row.what)
            rows.append(row)
    return Report(collect_provenance(), rows, ratios_of(rows), {"synthetic": True, "num_tokens": plan.num_tokens})


def ratios_of(rows: Sequence[LengthRow]) -> dict[str, float]:
    """Means and lowest values over the scenes, by policy."""
    ratios = {}
    for policy in POLICIES:
        name = policy.replace(" ", "_")
        vs_static = [row.vs_static_opt(policy) for row in rows]
        ratios[f"{name}_vs_static_opt_mean"] = fmean(vs_static)
        ratios[f"{name}_vs_static_opt_min"] = min(vs_static)
        ratios[f"{name}_vs_plain_min"] = min(row.vs_plain(policy) for row in rows)
    return ratios


@dataclass(frozen=True, slots=True)
class _Summary:
    policy: str
    mean: float
    lowest: float
    lowest_vs_plain: float
    num_slower: int  # scenes in which it is slower than plain decoding


def blocks(report: Report) -> list[Block]:
    """The policies, and the scenes in which goodput does worst."""
    rows: Sequence[LengthRow] = report.rows
    summaries = [
        _Summary(
            policy,
            fmean(row.vs_static_opt(policy) for row in rows),
            min(row.vs_static_opt(policy) for row in rows),
            min(row.vs_plain(policy) for row in rows),
            sum(row.vs_plain(policy) < 1.0 for row in rows),
        )
        for policy in POLICIES
    ]
    policies = Table(
        f"speeds over {len(rows)} scenes, against the best fixed length of each (with hindsight) and plain decoding",
        [
            Column("policy", "policy"),
            Column("vs static-opt, mean", "mean", ".3f"),
            Column("lowest", "lowest", ".3f"),
            Column("vs plain, lowest", "lowest_vs_plain", ".3f"),
            Column("slower than plain", "num_slower"),
        ],
        summaries,
    )
    worst = sorted(rows, key=lambda row: min(row.vs_static_opt("goodput"), row.vs_plain("goodput")))[:NUM_WORST]
    scenes = Table(
        "where goodput does worst",
        [
            Column("scene", "what"),
            Column("best length", "static_opt_length"),
            Column("static-opt vs plain", lambda row: row.static_opt / row.plain, ".2f"),
            Column("goodput vs static-opt", lambda row: row.vs_static_opt("goodput"), ".3f"),
            Column("vs plain", lambda row: row.vs_plain("goodput"), ".3f"),
        ],
        worst,
    )
    return [policies, scenes]
