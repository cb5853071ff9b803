"""The rows, ratios, sentences and picture of `bench tree`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from starspec.bench.pair.methods import Timed
from starspec.bench.tree.grid import Kind, kind_of
from starspec.harness.figures import require_matplotlib, save
from starspec.harness.report import Spread
from starspec.harness.step_times import StepSeconds
from starspec.harness.table import Block, Column, Table, ratio_lines, share
from starspec.harness.tree_report import TreeReport, TreeRow, final_rows, rate_of
from starspec.speculation.budget import DraftBudget


@dataclass(frozen=True, slots=True)
class _Side:
    """One parameter of a shape."""

    of: Callable[[DraftBudget], float]
    less: str
    more: str
    least: float  # smallest possible value


DEPTH = _Side(lambda shape: shape.num_steps, "shallower", "deeper", 1)
DOUBT = _Side(lambda shape: shape.p_min, "of a lower p_min", "of a higher p_min", 0.0)
SIDES = (
    DEPTH,
    DOUBT,
    _Side(lambda shape: shape.top_k, "narrower", "wider", 2),  # 1 is a chain
    _Side(lambda shape: shape.num_draft_tokens, "smaller", "larger", 2),
)


def ratios_of(rows: Sequence[TreeRow], steps: StepSeconds) -> dict[str, float]:
    """Ratios of medians of the final stage. A "fixed" chain is one without p_min."""
    ratios = {
        "head_step_vs_target_step": round(steps.draft_vs_target, 3),
        "step_with_features_vs_without": round(steps.giving_vs_target, 3),
    }
    for temperature in _temperatures(rows):
        best = _best_of_each_kind(rows, temperature)
        chains = [best[kind] for kind in (Kind.CHAIN, Kind.DOUBTING_CHAIN) if kind in best]
        ratios[f"best_tree_vs_best_chain_t{temperature:g}"] = _ratio(best[Kind.TREE], max(chains, key=rate_of))
        if Kind.CHAIN in best:
            ratios[f"best_tree_vs_best_fixed_chain_t{temperature:g}"] = _ratio(best[Kind.TREE], best[Kind.CHAIN])
        name = "speculative_vs_plain" + (f"_t{temperature:g}" if temperature else "")
        ratios[name] = max(each.vs_plain for each in best.values())
    return ratios


def losing_regimes(rows: Sequence[TreeRow]) -> list[str]:
    """A sentence for each temperature at which plain decoding beats every shape, or a chain beats every tree."""
    found = []
    for temperature in _temperatures(rows):
        kinds = _best_of_each_kind(rows, temperature)
        best, tree = max(kinds.values(), key=rate_of), kinds[Kind.TREE]
        if best.vs_plain < 1.0:
            found.append(f"T={temperature:g}: nothing beats plain decoding, {best.shape} comes to {best.vs_plain:.2f}x")
        if best is not tree:
            share = _ratio(tree, best)
            found.append(f"T={temperature:g}: {best.shape} beats every tree, {tree.shape} comes to {share:.2f}x of it")
    return found


def at_the_edge(rows: Sequence[TreeRow], shapes: Sequence[DraftBudget]) -> list[str]:
    """A sentence for each best shape at the edge of the grid of its kind, if shapes beyond it exist."""
    found = []
    for row in rows:
        if row.stage == "final" and row.num_nodes:
            kind = [shape for shape in shapes if kind_of(shape) is kind_of(row.budget)]
            all_alike = [shape for shape in shapes if shape.is_chain == row.budget.is_chain]  # p_min decides the kind
            beyond = [
                word for side in SIDES for word in _untried(row.budget, all_alike if side is DOUBT else kind, side)
            ]
            if beyond:
                found.append(f"{row.shape} at T={row.temperature:g}: nothing {' or '.join(beyond)} was tried")
    return found


def _untried(best: DraftBudget, tried: Sequence[DraftBudget], side: _Side) -> list[str]:
    if best.is_chain and side not in (DEPTH, DOUBT):  # a chain has no other parameters
        return []
    value, values = side.of(best), {side.of(shape) for shape in tried}
    below = [side.less] if value == min(values) > side.least else []
    return below + ([side.more] if value == max(values) else []) if len(values) > 1 else []


def _temperatures(rows: Sequence[TreeRow]) -> list[float]:
    return sorted({row.temperature for row in rows})


def _best_of_each_kind(rows: Sequence[TreeRow], temperature: float) -> dict[Kind, TreeRow]:
    best = dict[Kind, TreeRow]()
    for row in sorted(final_rows(rows, temperature), key=rate_of):
        if row.num_nodes:
            best[kind_of(row.budget)] = row
    return best


def _ratio(one: TreeRow, other: TreeRow) -> float:
    return round(rate_of(one) / rate_of(other), 3)


def tree_row(
    stage: str,
    temperature: float,
    name: str,
    shape: DraftBudget,
    timed: Timed,
    plain: Timed,
    num_bytes: float | None,
) -> TreeRow:
    """The row of one timed run.

    Args:
        plain: plain decoding of the same prompts, in the same stage.
        num_bytes: that crossed the link; None = plain decoding, without drafts.
    """
    acceptance = timed.acceptance if num_bytes is not None else None
    rate = Spread.of([round(each, 3) for each in timed.tokens_per_s])
    plain_rate = Spread.of(plain.tokens_per_s).median
    return TreeRow(
        stage=stage,
        temperature=temperature,
        shape=name,
        num_steps=shape.num_steps,
        eagle_topk=shape.top_k,
        num_nodes=shape.num_draft_tokens,
        p_min=shape.p_min,
        tokens_per_s=rate,
        vs_plain=round(rate.median / plain_rate, 3),
        acceptance_length=round(acceptance.acceptance_length, 3) if acceptance else None,
        block_efficiency=round(acceptance.block_efficiency, 3) if acceptance else None,
        bytes_per_accepted_token=_per_token(num_bytes, acceptance.num_accepted_tokens) if acceptance else None,
        num_same_as_plain=sum(
            answer.token_ids == plain.answers[name].token_ids for name, answer in timed.answers.items()
        ),
        num_answers=len(timed.answers),
    )


def _per_token(num_bytes: float | None, num_accepted: int) -> float | None:
    return round(num_bytes / num_accepted, 1) if num_bytes is not None and num_accepted else None


BRIGHT = 0.6  # share of the colour scale from which on black text is read better


def draw(rows: Sequence[TreeRow], path: Path) -> None:
    """Save a heat map of the trial: a panel for each temperature and p_min, a row for each depth and width.

    Raises: ConfigError if matplotlib is not installed or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    trial = [row for row in rows if row.stage == "trial" and row.num_nodes]
    kinds = sorted({(row.temperature, row.p_min) for row in trial})
    lines = sorted({(row.num_steps, row.eagle_topk) for row in trial if row.eagle_topk > 1})
    lines += [(0, 1)] if any(row.eagle_topk == 1 for row in trial) else []  # all chains in one row of the picture
    nodes = sorted({row.num_nodes for row in trial})
    figure = Figure(figsize=(1.5 + 4.2 * len(kinds), 2.0 + 0.35 * len(lines)), layout="constrained")
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    highest = max(row.vs_plain for row in trial)
    lowest = min(row.vs_plain for row in trial)
    for panel, (temperature, p_min) in zip(panels, kinds, strict=True):
        values = {_place(row): row.vs_plain for row in trial if (row.temperature, row.p_min) == (temperature, p_min)}
        cells = [[values.get((line, num), float("nan")) for num in nodes] for line in lines]
        image = panel.imshow(cells, aspect="auto", cmap="viridis", vmin=lowest, vmax=highest)
        for (line, num), value in values.items():
            colour = "black" if image.norm(value) > BRIGHT else "white"
            panel.text(nodes.index(num), lines.index(line), f"{value:.2f}", ha="center", va="center", color=colour)
        panel.set_xticks(range(len(nodes)), [str(num) for num in nodes])
        panel.set_yticks(range(len(lines)), [_label(line) for line in lines])
        panel.set_xlabel("nodes (draft tokens)")
        panel.set_title(f"T = {temperature:g}, p_min {p_min:g}")
    panels[0].set_ylabel("steps x children of a node")
    figure.colorbar(image, ax=list(panels), label="tokens/s over plain (times)")
    save(figure, path)


def _place(row: TreeRow) -> tuple[tuple[int, int], int]:
    line = (0, 1) if row.eagle_topk == 1 else (row.num_steps, row.eagle_topk)
    return line, row.num_nodes


def _label(line: tuple[int, int]) -> str:
    depth, top_k = line
    return "chains" if top_k == 1 else f"{depth} steps x {top_k}"


COLUMNS = (
    Column("stage", "stage"),
    Column("T", "temperature", "g"),
    Column("shape", "shape"),
    Column("tokens/s", "tokens_per_s", ".2f"),
    Column("over plain", lambda row: f"{row.vs_plain:.2f}x"),
    Column("acceptance length", "acceptance_length", ".2f"),
    Column("block efficiency", "block_efficiency", ".2f"),
    Column("bytes / accepted", "bytes_per_accepted_token", ".0f"),
    Column("as plain", share("num_same_as_plain", "num_answers")),
)


def blocks(report: TreeReport) -> list[Block]:
    """What people read."""
    title = "tokens/s: median (lowest to highest) of the repeats, prompts included; bytes = of verdicts and proposals"
    return [
        Table(title, COLUMNS, report.rows),
        f"numerics: {report.numerics}",
        f"one step: {report.draft_step_ms:.2f} ms of the draft, {report.target_step_ms:.2f} ms of the target",
        *(f"[bold]best at {temperature}: {best}[/]" for temperature, best in report.best.items()),
        *(f"a losing regime: {sentence}" for sentence in report.losing),
        *(f"{sentence}, which may be better" for sentence in report.at_the_edge),
        *report.left_out,
        *ratio_lines(report.ratios),
    ]
