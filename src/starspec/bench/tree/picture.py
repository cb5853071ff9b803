"""The grid as a picture: tokens a second over plain decoding, by depth, width, nodes and p_min."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starspec.bench.tree.rows import TreeRow
from starspec.harness.figures import require_matplotlib, save


def draw(rows: Sequence[TreeRow], path: Path) -> None:
    """Save a heat map of the trial: a panel for each temperature and p_min, a line for each depth and width.

    Raises: ConfigError if matplotlib is not installed or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    trial = [row for row in rows if row.stage == "trial" and row.num_nodes]
    kinds = sorted({(row.temperature, row.p_min) for row in trial})
    lines = sorted({(row.num_steps, row.eagle_topk) for row in trial if row.eagle_topk > 1})
    lines += [(0, 1)] if any(row.eagle_topk == 1 for row in trial) else []  # all chains in one line
    nodes = sorted({row.num_nodes for row in trial})
    figure = Figure(figsize=(1.5 + 4.2 * len(kinds), 1.5 + 0.35 * len(lines)), layout="constrained")
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    highest = max(row.vs_plain for row in trial)
    lowest = min(row.vs_plain for row in trial)
    for panel, (temperature, p_min) in zip(panels, kinds, strict=True):
        values = {_place(row): row.vs_plain for row in trial if (row.temperature, row.p_min) == (temperature, p_min)}
        cells = [[values.get((line, num), float("nan")) for num in nodes] for line in lines]
        image = panel.imshow(cells, aspect="auto", cmap="viridis", vmin=lowest, vmax=highest)
        for (line, num), value in values.items():
            panel.text(nodes.index(num), lines.index(line), f"{value:.2f}", ha="center", va="center", color="white")
        panel.set_xticks(range(len(nodes)), [str(num) for num in nodes])
        panel.set_yticks(range(len(lines)), [_label(line) for line in lines])
        panel.set_xlabel("nodes")
        panel.set_title(f"T = {temperature:g}, p_min {p_min:g}: tokens/s over plain")
    figure.colorbar(image, ax=list(panels))
    save(figure, path)


def _place(row: TreeRow) -> tuple[tuple[int, int], int]:
    line = (0, 1) if row.eagle_topk == 1 else (row.num_steps, row.eagle_topk)
    return line, row.num_nodes


def _label(line: tuple[int, int]) -> str:
    depth, top_k = line
    return "chains" if top_k == 1 else f"{depth} steps x {top_k}"
