"""Progress of something slow, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from starspec.quoting import harmless

FIRST_LINE_S: Final = 2.0  # where there is no terminal, what ends sooner is not worth a line
LINE_INTERVAL_S: Final = 10.0  # between two lines about one stage


class ProgressBar:
    """One bar for all stages of what runs in its block; it disappears with the block. A context manager.

    Names of models and files are shown as they are: they are not markup, and cannot command the terminal.

    Args:
        what: what runs, as text for people.
        is_shown: False = show nothing.
        first_line_s: where there is no terminal, nothing is printed before.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        what: str,
        *,
        is_shown: bool = True,
        first_line_s: float = FIRST_LINE_S,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = Console(stderr=True, highlight=False) if console is None else console
        self._what = what = harmless(what)
        self._is_shown, self._first_line_s = is_shown, first_line_s
        self._clock = clock
        self._begun_s = clock()
        self._printed_s = self._begun_s
        self._printed_stage = self._printed_line = ""
        self._stage, self._num_done, self._num_turns = "", 0, 0  # of the stage whose turns are counted
        text = TextColumn("{task.description}", markup=False)
        columns = (SpinnerColumn(), text, BarColumn(), TaskProgressColumn())
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
        """Show how far a stage is. `num_all` 0 = that is unknown. Effects: none on the turns that `turn` counts."""
        self._show(stage, stage, num_done, num_all)

    def begin(self, stage: str, num_turns: int | None) -> None:
        """Begin a stage of `num_turns` turns; None = the number is unknown."""
        self._stage, self._num_done, self._num_turns = stage, 0, num_turns or 0
        self.show(stage, 0, self._num_turns)

    def turn(self, what: str) -> None:
        """Count one turn of the stage and show `what`."""
        self._num_done += 1
        self._show(self._stage, what, self._num_done, self._num_turns)

    def advance(self, what: str, num_turns: int | None) -> None:
        """Count a turn; or begin a stage, if `num_turns` is given. Measurements call this."""
        if num_turns is None:
            self.turn(what)
        else:
            self.begin(what, num_turns)

    def _show(self, stage: str, detail: str, num_done: int, num_all: int) -> None:
        """On a terminal the bar has the detail, elsewhere lines name the stage."""
        if not self._is_shown:
            return
        if self._console.is_terminal:
            description = f"{self._what}: {harmless(detail)}"
            self._progress.update(self._task, description=description, completed=num_done, total=num_all or None)
            return
        now, line = self._clock(), f"{self._what}: {with_share(stage, num_done, num_all)}"
        pause_s = LINE_INTERVAL_S if stage == self._printed_stage else 0.0
        if (
            line != self._printed_line
            and now - self._begun_s >= self._first_line_s
            and now - self._printed_s >= pause_s
        ):
            self._printed_s, self._printed_stage, self._printed_line = now, stage, line
            self._console.print(Text(harmless(line)), soft_wrap=True)


def with_share(stage: str, num_done: int, num_all: int) -> str:
    """`reading x, 40%`, in tenths; the stage alone if `num_all` is 0."""
    return f"{stage}, {10 * (10 * min(num_done, num_all) // num_all)}%" if num_all else stage
