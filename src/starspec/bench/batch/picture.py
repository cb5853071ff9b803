"""The rows as pictures, shaped like figure 5 of "Batch Speculative Decoding Done Right"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starspec.bench.batch.methods import METHODS, PLAIN
from starspec.bench.batch.rows import BatchRow
from starspec.harness.figures import require_matplotlib, save


def draw(rows: Sequence[BatchRow], path: Path) -> None:
    """Save three panels over batch size: scaling of each method, share and time of realignment, grouping rates.

    Raises: ConfigError if matplotlib is not installed or the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(15, 4.4), layout="constrained")
    scaling, overhead, grouping = figure.subplots(1, 3)
    _lines(scaling, rows, lambda row: row.batch_scaling)
    scaling.set_title("(a) tokens/s of rounds,\nover the method's own at batch 1")
    _lines(overhead, _speculative(rows), lambda row: 100 * row.overhead_share)
    overhead.set_title("(b) overhead, % of rounds' time\n(dotted, right axis: ms a round)")
    per_round = overhead.twinx()
    _lines(per_round, _speculative(rows), _overhead_ms, linestyle=":")
    _lines(grouping, _speculative(rows), lambda row: 100 * row.grouping_rate)
    grouping.set_title("(c) rounds without realignment, %\n")
    sizes = sorted({row.batch_size for row in rows})
    for panel in (scaling, overhead, grouping):
        panel.set_xlabel("batch size")
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, labels=[*map(str, sizes)], minor=False)
    if not scaling.lines:
        scaling.text(0.5, 0.5, "batch 1 was not measured", ha="center", transform=scaling.transAxes)
    lines = {line.get_label(): line for panel in (overhead, scaling) for line in panel.lines}
    figure.legend([*lines.values()], [*lines], loc="outside right center")
    save(figure, path)


def _speculative(rows: Sequence[BatchRow]) -> list[BatchRow]:
    return [row for row in rows if not row.method.startswith(PLAIN)]


def _overhead_ms(row: BatchRow) -> float:
    return row.ms_realign_pad + row.ms_realign_kv + row.ms_copy + row.ms_schedule


def _lines(
    panel: Any, rows: Sequence[BatchRow], value_of: Callable[[BatchRow], float | None], linestyle: str = "-"
) -> None:
    """One line a method; a method keeps its color in every panel."""
    for number, method in enumerate(METHODS):
        points = [(row.batch_size, value_of(row)) for row in rows if row.method == method]
        known = sorted((size, value) for size, value in points if value is not None)
        if known:
            sizes, values = zip(*known, strict=True)
            panel.plot(sizes, values, marker="o", linestyle=linestyle, color=f"C{number}", label=method)
