"""Progress of something slow, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

FIRST_LINE_S: Final = 2.0  # where there is no terminal, what ends sooner is not worth a line
LINE_INTERVAL_S: Final = 10.0  # between two lines about one stage


class StageBar:
    """One bar for all stages of what runs in its block; it disappears with the block. A context manager.

    Args:
        what: what runs, as text for people.
        is_shown: False = show nothing.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        what: str,
        *,
        is_shown: bool = True,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._what = what
        self._is_shown = is_shown
        self._clock = clock
        self._begun_s = clock()
        self._printed_s = self._begun_s
        self._printed_stage = ""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        self._progress = Progress(
            *columns,
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not (is_shown and self._console.is_terminal),
        )
        self._task = self._progress.add_task(what, total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, stage: str, num_done: int, num_all: int) -> None:
        """Show how far a stage is. `num_all` 0 = that is unknown."""
        if not self._is_shown:
            return
        if self._console.is_terminal:
            description = f"{self._what}: {stage}"
            self._progress.update(self._task, description=description, completed=num_done, total=num_all or None)
            return
        now = self._clock()
        since = LINE_INTERVAL_S if stage == self._printed_stage else 0.0
        if now - self._begun_s >= FIRST_LINE_S and now - self._printed_s >= since:
            self._printed_s, self._printed_stage = now, stage
            self._console.print(f"{self._what}: {with_share(stage, num_done, num_all)}")


def with_share(stage: str, num_done: int, num_all: int) -> str:
    """`reading x, 40%`, in tenths; the stage alone if `num_all` is 0."""
    return f"{stage}, {10 * (10 * num_done // num_all)}%" if num_all else stage
