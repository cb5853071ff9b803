"""How far a long command is: a bar on a terminal, elsewhere a line for each tenth of a stage. On standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class ProgressBar:
    """One bar, stage after stage. A context manager; leaving it takes the bar away."""

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
        """A stage of so many turns begins; None: nobody knows how many."""
        self._stage, self._num_turns, self._num_done = stage, num_turns, 0
        if not self._console.is_terminal:
            self._console.print(f"{self._what}: {stage} ...")
        self._progress.reset(self._task, total=num_turns, description=stage)

    def turn(self, what: str) -> None:
        """A turn of the stage is done, or begins; `what` is shown."""
        self._progress.update(self._task, advance=1, description=what)
        self._num_done += 1
        if self._num_turns and not self._console.is_terminal:
            tenths, before = (10 * num // self._num_turns for num in (self._num_done, self._num_done - 1))
            if tenths > before:
                self._console.print(f"{self._what}: {self._stage}, {10 * tenths}%")

    def advance(self, what: str, num_turns: int | None) -> None:
        """A turn, or, if so many turns are told, the beginning of a stage: what measurements call."""
        if num_turns is None:
            self.turn(what)
        else:
            self.begin(what, num_turns)

    def reach(self, stage: str, num_done: int, num_turns: int) -> None:
        """So much of a stage is done; the first time a stage is named, it begins."""
        if stage != self._stage:
            self.begin(stage, num_turns)
        before, self._num_done = self._num_done, min(num_done, num_turns)
        self._progress.update(self._task, completed=self._num_done)
        tenths = 10 * self._num_done // num_turns
        if not self._console.is_terminal and tenths > 10 * before // num_turns:
            self._console.print(f"{self._what}: {stage}, {10 * tenths}%")
