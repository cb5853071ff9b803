"""What all measuring commands share: progress, tables, `--quick`, and how a report is shown, saved and judged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import rich.table
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from starspec.cli.process import log_to_stderr
from starspec.config.option import MEASURE
from starspec.harness.table import Block, Table

if TYPE_CHECKING:
    from starspec.harness.report import Report

PIPE_WIDTH = 140  # columns where there is no terminal to ask

Quick = Annotated[bool, typer.Option("--quick", help="The same work in small: a few minutes.", rich_help_panel=MEASURE)]


class ProgressBar:
    """One bar for all stages. A context manager; on exit the bar disappears."""

    def __init__(self, what: str) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._what = what
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(what, total=None)
        self._stage = what
        self._num_turns: int | None = None  # of this stage
        self._num_done = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, stage: str, num_turns: int | None) -> None:
        """Begin a stage of `num_turns` turns; None = the number is unknown."""
        self._stage, self._num_turns, self._num_done = stage, num_turns, 0
        if not self._console.is_terminal:
            self._console.print(f"{self._what}: {stage} ...")
        self._progress.reset(self._task, total=num_turns, description=stage)

    def turn(self, what: str) -> None:
        """Count one turn of the stage and show `what`."""
        self._progress.update(self._task, advance=1, description=what)
        self._num_done += 1
        if self._num_turns and not self._console.is_terminal:
            tenths, before = (10 * num // self._num_turns for num in (self._num_done, self._num_done - 1))
            if tenths > before:
                self._console.print(f"{self._what}: {self._stage}, {10 * tenths}%")

    def advance(self, what: str, num_turns: int | None) -> None:
        """Count a turn; or begin a stage, if `num_turns` is given. Measurements call this."""
        if num_turns is None:
            self.turn(what)
        else:
            self.begin(what, num_turns)

    def reach(self, stage: str, num_done: int, num_turns: int) -> None:
        """Show that `num_done` turns of a stage are done. A stage begins when it is first named."""
        if stage != self._stage:
            self.begin(stage, num_turns)
        before, self._num_done = self._num_done, min(num_done, num_turns)
        self._progress.update(self._task, completed=self._num_done)
        tenths = 10 * self._num_done // num_turns
        if not self._console.is_terminal and tenths > 10 * before // num_turns:
            self._console.print(f"{self._what}: {stage}, {10 * tenths}%")


@contextmanager
def measuring(command: str, stage: str | None = "loading") -> Iterator[ProgressBar]:
    """Show the progress of a measurement; only warnings are logged.

    Args:
        stage: the first one; None = the measurement says it.
    """
    log_to_stderr("warning")
    with ProgressBar(command) as bar:
        if stage is not None:
            bar.begin(stage, None)
        yield bar


def out() -> Console:
    """Standard output, wide enough for a table when it is not a terminal."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def draw_table(table: Table) -> rich.table.Table:
    """The table for a terminal. Columns are right-aligned, except the first and those of text."""
    drawn = rich.table.Table(title=table.title, title_justify="left")
    for index, column in enumerate(table.columns):
        drawn.add_column(column.title, justify="left" if index == 0 or column.is_text else "right")
    for index, row in enumerate(table.rows):
        if table.begins_section(index):
            drawn.add_section()
        cells = (column.cell(row) for column in table.columns)
        drawn.add_row(*cells, style="bold" if table.is_bold(row) else None)
    return drawn


def show(blocks: Sequence[Block]) -> None:
    """Print tables and lines."""
    console = out()
    for block in blocks:
        console.print(draw_table(block) if isinstance(block, Table) else block)


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
) -> None:
    """Print a report and save it. Nothing is saved without a file.

    Args:
        blocks: what is printed.
        num_repeats: of `--quick`.
        draw: saves the picture of the report, if one is wanted.
        mistakes: sentences about what must not be; printed last.
        fails: exit with 1 even if there are no sentences.
    Raises: Exit(1) after a mistake; ConfigError if a file cannot be written.
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
