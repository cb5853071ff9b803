"""Progress of a long command, on standard error: a bar on a terminal, a line for each tenth of a stage elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


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
