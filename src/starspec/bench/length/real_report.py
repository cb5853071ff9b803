"""The tables, sentences and picture of `bench length` with a real pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from starspec.bench.length.real_rows import CellRow, RealReport, RivalRow, cell_rows
from starspec.bench.length.rivals import POLICIES
from starspec.bench.length.signals import DEPTH
from starspec.config.speculative import DSDE_NUM_STATED
from starspec.harness.compare import divergence_lines
from starspec.harness.figures import look, require_matplotlib, save
from starspec.harness.table import Block, Column, Table, ratio_lines, share

CELL_COLUMNS = (
    Column("drafter, category", lambda row: f"{row.cell.drafter}, {row.cell.category}"),
    Column("T", "cell.temperature", "g"),
    Column("batch", "cell.batch_size"),
    Column("plain", "plain", ".1f"),
    Column("static-opt", "static_opt", ".1f"),
    Column("K", "static_opt_length"),
)
SIGNAL_COLUMNS = (
    Column("drafter", "drafter"),
    Column("category", "category", is_text=True),
    Column("T", "temperature", "g"),
    Column("tokens", lambda row: row.num_tokens or None),
    Column("accepted", "acceptance", ".1%"),
    Column("entropy", "entropy", "+.3f"),
    Column("mean KLD", "mean_kld", "+.3f"),
    Column("WVIR", "wvir", "+.3f"),
)
WIRE_COLUMNS = (
    Column("drafter", "drafter"),
    Column("message", "message", is_text=True),
    Column("messages", "num_messages"),
    Column("bytes with signals", "with_signals", ".1f"),
    Column("without", "without", ".1f"),
)
CELL_TITLE = (
    "plain and static-opt (the best fixed length K, with hindsight): tokens/s of full batches, without prefill, "
    "medians of the repeats; policies: over static-opt"
)
SIGNAL_TITLE = f"Pearson correlation with the acceptance of a draft token, chains of {DEPTH} (DSDE, Table II)"
WIRE_TITLE = f"encoded bytes of a message, chains of {DEPTH}, {DSDE_NUM_STATED} stated tokens after each node"


def blocks(report: RealReport) -> list[Block]:
    """What people read."""
    sides = [(name, _vs_static_opt(name)) for name in _ran(report.rows)]
    columns = (
        *CELL_COLUMNS,
        *(Column(name, of, ".2f") for name, of in sides),
        Column("goodput/plain", lambda row: row.policies["goodput"].vs_plain if row.policies else None, ".2f"),
        Column("default/plain", "default.vs_plain", ".2f"),
        Column("differ", share("num_different", "num_answers")),
    )
    return [
        Table(CELL_TITLE, columns, cell_rows(report.rows)),
        Table(SIGNAL_TITLE, SIGNAL_COLUMNS, report.signals),
        Table(WIRE_TITLE, WIRE_COLUMNS, report.wire),
        f"numerics: {report.numerics}",
        *([] if report.is_whole else ["interrupted: these are the cells that were done"]),
        f"answers unlike plain decoding's: {report.num_different} of {report.num_answers} ({_promise(report)})",
        *(line for row in report.rows for line in _divergence_lines(row)),
        f"default policy: {report.default_method}; it took {report.seconds:.0f} s, {report.estimated_s:.0f} s expected",
        *ratio_lines(report.ratios),
    ]


def _ran(rows: Sequence[RivalRow]) -> list[str]:
    """The policies that were measured."""
    return [name for name in POLICIES if any(row.method == name for row in rows)]


def _vs_static_opt(policy: str) -> Callable[[CellRow], float | None]:
    return lambda row: row.vs_static_opt(policy)


def _promise(report: RealReport) -> str:
    return "promised to be none" if report.is_promised else "not promised with these settings"


def _divergence_lines(row: RivalRow) -> list[str]:
    who = f"{row.method} ({row.cell.name})"
    return divergence_lines(who, row.first_divergence, row.num_different, row.num_explained)


def draw(rows: Sequence[RivalRow], path: Path) -> None:
    """Save the speed of plain decoding and of each policy over the best fixed length: a panel for each temperature.

    Raises: ConfigError if matplotlib is not installed or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    cells = [row for row in cell_rows(rows) if row.static_opt]
    temperatures = sorted({row.cell.temperature for row in cells})
    num_wide = max(sum(row.cell.temperature == each for row in cells) for each in temperatures)
    figure = Figure(figsize=(3.0 + 0.7 * num_wide * len(temperatures), 4.6), layout="constrained")
    panels = figure.subplots(1, len(temperatures), squeeze=False, sharey=True)[0]
    for panel, temperature in zip(panels, temperatures, strict=True):
        shown = [row for row in cells if row.cell.temperature == temperature]
        for number, (name, values) in enumerate(_lines(shown).items()):
            panel.plot(values, linestyle=":", label=name, **look(number))
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(shown)), [_label(row) for row in shown], rotation=60, ha="right", fontsize=8)
        panel.set_xlabel("draft, prompts, batch size (sequences)")
        panel.set_title(f"T = {temperature:g}")
    panels[0].set_ylabel("tokens/s over the best fixed length (times)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    save(figure, path)


def _lines(cells: Sequence[CellRow]) -> dict[str, list[float]]:
    """Name -> speed over static-opt in each cell."""
    plain = [row.plain / (row.static_opt or 1.0) for row in cells]
    policies = [name for name in POLICIES if any(name in row.policies for row in cells)]
    return {name: [row.vs_static_opt(name) or 0.0 for row in cells] for name in policies} | {"plain": plain}


def _label(row: CellRow) -> str:
    return f"{row.cell.drafter}, {row.cell.category}, {row.cell.batch_size}"
