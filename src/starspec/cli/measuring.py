"""What all measuring commands share: progress, tables, `--quick`, and how a report is shown, saved and judged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.table
import typer
from rich.console import Console
from rich.text import Text

from starspec.cli.output import check_output
from starspec.cli.process import log_to_stderr
from starspec.config.option import MEASURE
from starspec.harness.table import Block, Table
from starspec.models.loading.progress import listening
from starspec.observe.progress import ProgressBar
from starspec.quoting import harmless

if TYPE_CHECKING:
    from starspec.harness.report import Report

PIPE_WIDTH = 140  # columns where there is no terminal to ask

Quick = Annotated[bool, typer.Option("--quick", help="The same work in small: a few minutes.", rich_help_panel=MEASURE)]


@contextmanager
def measuring(command: str, stage: str | None = "loading") -> Iterator[ProgressBar]:
    """Show the progress of a measurement, the stages of loading in this process included; only warnings are logged.

    Args:
        stage: the first one; None = the measurement says it.
    Raises: OutputError if its tables could not be printed.
    """
    check_output()
    log_to_stderr("warning")
    with ProgressBar(command, first_line_s=0.0) as bar, listening(bar.show):
        if stage is not None:
            bar.begin(stage, None)
        yield bar


def out() -> Console:
    """Standard output, wide enough for a table when it is not a terminal."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def draw_table(table: Table) -> rich.table.Table:
    """The table for a terminal. Columns are right-aligned, except the first and those of text.

    Rich would read a plain string as markup, and a terminal could obey it: cells have names of models, files and
    processes.
    """
    drawn = rich.table.Table(title=Text(harmless(table.title), style="table.title"), title_justify="left")
    for index, column in enumerate(table.columns):
        drawn.add_column(column.title, justify="left" if index == 0 or column.is_text else "right")
    for index, row in enumerate(table.rows):
        if table.begins_section(index):
            drawn.add_section()
        cells = (Text(harmless(column.cell(row))) for column in table.columns)
        drawn.add_row(*cells, style="bold" if table.is_bold(row) else None)
    return drawn


def show(blocks: Sequence[Block]) -> None:
    """Print tables and lines."""
    console = out()
    for block in blocks:
        console.print(draw_table(block) if isinstance(block, Table) else harmless(block))


def publish(
    report: Report | Any,
    blocks: Sequence[Block],
    json_file: Path | None,
    *,
    quick: bool = False,
    num_repeats: int = 1,
    draw: Callable[[], None] | None = None,
    mistakes: Sequence[str] = (),
    fails: bool = False,
    is_whole: bool = True,
) -> None:
    """Print a report and save it. Nothing is saved without a file.

    Args:
        blocks: what is printed.
        num_repeats: of `--quick`.
        draw: saves the picture of the report, if one is wanted.
        mistakes: sentences about what must not be; printed last.
        fails: exit with 1 even if there are no sentences.
        is_whole: False after an interrupt, which is how it then ends.
    Raises: Exit(1) after a mistake; Abort if it is not whole; ConfigError if a file cannot be written.
    """
    from starspec.harness.report import write_report  # noqa: PLC0415 (torch)

    show(blocks)
    if quick:
        repeats = "one repeat" if num_repeats == 1 else f"{num_repeats} repeats"
        show([f"--quick: {repeats} of little work, so figures and ratios may be chance: do not quote them"])
    if json_file is not None:
        write_report(report, json_file)
    if draw is not None:
        draw()
    show(mistakes)
    if mistakes or fails:
        raise typer.Exit(1)
    if not is_whole:
        raise typer.Abort
