"""Throughput by batch size on synthetic accelerators: what DSDE's cap brings where sequences differ (Figure 9).

One half of the sequences is easy to draft for, the other half is not. A round waits for its longest draft. Each batch
size decodes the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from starspec.bench.length.grid import MOST
from starspec.bench.length.simulation import Curve, Scene, Simulation
from starspec.harness.children import in_processes
from starspec.harness.figures import look, require_matplotlib, save
from starspec.harness.table import Column, Table
from starspec.policy.length.dsde import Dsde
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.goodput import Goodput
from starspec.policy.length.snapshot import LengthPolicy
from starspec.speculation.budget import DraftBudget

BATCHES: Final = (1, 2, 4, 8, 16)
CURVES: Final[tuple[Curve, ...]] = ("flat", "knee")
QUICK_TOKENS: Final = 400  # of each sequence in the largest batch
DRAFT_STEP: Final = 0.1  # of a target step
CAPPED, UNCAPPED = "dsde", "dsde without cap"
POLICIES: Final[dict[str, LengthPolicy]] = {
    "plain": FixedLength(DraftBudget.chain(0)),
    "fixed 4": FixedLength(DraftBudget.chain(4)),
    CAPPED: Dsde(DraftBudget.chain(10)),
    UNCAPPED: Dsde(DraftBudget.chain(10), is_capped=False),
    "goodput": Goodput(MOST),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One policy at one batch size."""

    curve: Curve
    policy: str
    batch: int
    tokens_per_step: float  # of all sequences, by unit of time
    scaling: float  # over its own at batch 1


def measure_scaling(num_tokens: int, advance: Callable[[str], None]) -> list[ScalingRow]:
    """Run each policy at each batch size, each processor one at a time.

    Args:
        num_tokens: of each sequence in the largest batch; smaller batches have longer queues.
        advance: called with each run that is done, `num_runs` times.
    """
    runs = [(curve, policy, batch) for curve in CURVES for policy in POLICIES for batch in BATCHES]
    speeds: dict[tuple[Curve, str, int], float] = {}
    with in_processes(partial(speed_of, num_tokens=num_tokens), runs) as found:
        for run, speed in zip(runs, found, strict=True):
            advance(f"{run[1]}, batch {run[2]}")
            speeds[run] = speed
    return [
        ScalingRow(
            curve=curve,
            policy=policy,
            batch=batch,
            tokens_per_step=round(speed, 4),
            scaling=round(speed / speeds[curve, policy, BATCHES[0]], 3),
        )
        for (curve, policy, batch), speed in speeds.items()
    ]


def num_runs() -> int:
    """How often `measure_scaling` advances."""
    return len(CURVES) * len(POLICIES) * len(BATCHES)


def speed_of(run: tuple[Curve, str, int], num_tokens: int) -> float:
    """Tokens by unit of time of one run. Args: run: curve, policy and batch size."""
    curve, policy, batch = run
    scene = Scene("bimodal", DRAFT_STEP, curve, batch=batch)
    return Simulation(scene, POLICIES[policy]).run(num_tokens * max(BATCHES) // batch)


def ratios_of(rows: Sequence[ScalingRow]) -> dict[str, float]:
    """Scaling of both forms of DSDE and of goodput at the largest batch, and what the cap brings there."""
    ratios = {}
    for curve in CURVES:
        found = {row.policy: row for row in rows if (row.curve, row.batch) == (curve, max(BATCHES))}
        for policy in (CAPPED, UNCAPPED, "goodput"):
            ratios[f"{policy.replace(' ', '_')}_scaling_{curve}"] = found[policy].scaling
        gain = found[CAPPED].tokens_per_step / found[UNCAPPED].tokens_per_step
        ratios[f"dsde_vs_dsde_without_cap_{curve}"] = round(gain, 3)
    return ratios


@dataclass(frozen=True, slots=True)
class _Line:
    """One policy, over the batch sizes."""

    curve: Curve
    policy: str
    by_batch: dict[int, ScalingRow]


def table(rows: Sequence[ScalingRow]) -> Table:
    """One row for each policy and curve."""
    lines = [_Line(*kind, values) for kind, values in _by_line(rows).items()]

    def cell(batch: int) -> Callable[[_Line], str]:
        return lambda line: f"{line.by_batch[batch].tokens_per_step:.2f} ({line.by_batch[batch].scaling:.2f}x)"

    columns = [Column("policy", "policy"), *(Column(f"batch {batch}", cell(batch)) for batch in BATCHES)]
    title = "sequences of two kinds: tokens per target step (over the policy's own at batch 1), as in DSDE's Figure 9"
    return Table(title, [Column("curve", "curve"), *columns], lines, section="curve")


def draw(rows: Sequence[ScalingRow], path: Path) -> None:
    """Save a panel for each curve: tokens by batch size, a line for each policy.

    Raises: ConfigError if matplotlib is not installed or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, len(CURVES), squeeze=False)[0]
    for panel, curve in zip(panels, CURVES, strict=True):
        shown = {policy: values for (each, policy), values in _by_line(rows).items() if each == curve}
        for number, (policy, values) in enumerate(shown.items()):
            speeds = [values[batch].tokens_per_step for batch in BATCHES]
            panel.plot(BATCHES, speeds, label=policy, **look(number))
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xticks(BATCHES, labels=[*map(str, BATCHES)], minor=False)
        panel.set_xlabel("batch size (sequences)")
        panel.set_title(f"target steps: {curve}")
    panels[0].set_ylabel("tokens per target step")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    save(figure, path)


def _by_line(rows: Sequence[ScalingRow]) -> dict[tuple[Curve, str], dict[int, ScalingRow]]:
    lines: dict[tuple[Curve, str], dict[int, ScalingRow]] = {}
    for row in rows:
        lines.setdefault((row.curve, row.policy), {})[row.batch] = row
    return lines
