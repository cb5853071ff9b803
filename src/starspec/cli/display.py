"""What `starspec up` shows: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from starspec.observe.metrics import StatusSnapshot
from starspec.observe.status import StatusWatch
from starspec.observe.table import names_of_stages, star_line, star_table
from starspec.quoting import harmless
from starspec.supervise.child import ChildState
from starspec.supervise.star import StarPorts
from starspec.supervise.supervisor import ChildView

TABLE_INTERVAL_S = 0.5
LINE_INTERVAL_S = 10.0
SHARE = re.compile(r", \d+%$")  # of a stage of loading
HUB: Final = "hub"
NO_TARGETS: Final = (HUB, "gateway")


class Display(Protocol):
    """Shows a star. A context manager; on exit the terminal is free again."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show_line(self, name: str, line: str) -> None:
        """Show one line that `up` says about a process, on standard output."""
        ...

    def show_log(self, name: str, line: str) -> None:
        """Show one line that a process printed, on standard error."""
        ...

    def show_start(self, views: Sequence[ChildView]) -> None:
        """Show how far the processes have started; called often."""
        ...

    def begin(self, ports: StarPorts, *, has_hub: bool) -> None:
        """Start to ask the processes, which are ready, for their statistics."""
        ...

    def show(self, views: Sequence[ChildView]) -> None:
        """Show the star as it is now; called often."""
        ...


class _Watching:
    """What both displays share: asking for the statistics, and when to show them."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._watch: StatusWatch | None = None
        self._shown_s = time.monotonic()
        self.started_s = self._shown_s

    def begin(self, ports: StarPorts, *, has_hub: bool) -> None:
        self._watch = StatusWatch(ports.target_endpoints, ports.hub_endpoint if has_hub else None)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def is_due(self) -> bool:
        """Whether it is time to show something. Effects: takes in the statistics that have arrived."""
        now = time.monotonic()
        if self._watch is not None:
            self._watch.poll()
        if now - self._shown_s < self._interval_s:
            return False
        self._shown_s = now
        return True


class LineDisplay(_Watching):
    """Lines: what changes while starting, and the statistics every ten seconds."""

    def __init__(self) -> None:
        super().__init__(LINE_INTERVAL_S)
        self._last: dict[str, tuple[str, float]] = {}  # child -> what was said of its start, and when

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show_line(self, name: str, line: str) -> None:
        _write(sys.stdout, name, line)

    def show_log(self, name: str, line: str) -> None:
        _write(sys.stderr, name, line)

    def show_start(self, views: Sequence[ChildView]) -> None:
        for view in views:
            sentence, now = _sentence(view), time.monotonic()
            last, said_s = self._last.get(view.spec.name, ("", now))
            is_due = now - said_s >= LINE_INTERVAL_S  # a stage that goes on is said now and then
            if SHARE.sub("", sentence) != SHARE.sub("", last) or (is_due and sentence != last):
                self._last[view.spec.name] = sentence, now
                self.show_line(view.spec.name, sentence)

    def show(self, views: Sequence[ChildView]) -> None:
        if self.is_due() and self._watch is not None:
            snapshot = self._watch.snapshot
            self.show_line("up", star_line(snapshot, *states_of(views, snapshot)))


class TableDisplay(_Watching):
    """A table at the foot of the terminal. The output of the processes scrolls above it, unless it goes to a file."""

    def __init__(self) -> None:
        super().__init__(TABLE_INTERVAL_S)
        self._console = Console(highlight=False)
        self._live = Live(
            console=self._console, auto_refresh=True, refresh_per_second=8, redirect_stderr=sys.stderr.isatty()
        )
        self._spinner = Spinner("dots")

    @staticmethod
    def is_possible() -> bool:
        """Whether standard output is a terminal that can redraw."""
        return Console().is_terminal and sys.stdout.isatty()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self.close()

    def show_line(self, name: str, line: str) -> None:
        self._console.print(_line(name, line), markup=False)

    def show_log(self, name: str, line: str) -> None:
        _write(sys.stderr, name, line)  # on a terminal, `Live` puts itself in the place of the stream

    def show_start(self, views: Sequence[ChildView]) -> None:
        table = Table.grid(padding=(0, 1))
        for view in views:
            sign = "✓" if view.state is ChildState.READY else self._spinner
            table.add_row(sign, view.spec.name, Text(harmless(_sentence(view))))
        table.add_row("", "", f"{time.monotonic() - self.started_s:.0f} s")
        self._live.update(table)

    def show(self, views: Sequence[ChildView]) -> None:
        if self.is_due() and self._watch is not None:
            address = next((view.detail for view in views if view.spec.name == "gateway"), "")
            title = f"starspec at {address}/v1, up {time.monotonic() - self.started_s:.0f} s"
            snapshot = self._watch.snapshot
            self._live.update(star_table(snapshot, title, *states_of(views, snapshot)))


def _write(stream: TextIO, name: str, line: str) -> None:
    """Write a line, whatever becomes of it: the star serves on, and stops in good order."""
    try:
        print(_line(name, line), file=stream, flush=True)
    except BrokenPipeError:  # the reader is gone, as `tee` at Ctrl-C
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError:  # as on a full disk. The line comes once there is room again
        return


def _line(name: str, line: str) -> str:
    return f"{name:<9}| {harmless(line)}"


def _sentence(view: ChildView) -> str:
    if view.state is ChildState.READY:
        return f"ready at {view.detail}{view.memory and f', {view.memory}'}"
    return view.detail or view.state.value


class States(NamedTuple):
    """As tables take them."""

    targets: dict[str, str]  # name -> state
    hub: str | None


def states_of(views: Sequence[ChildView], snapshot: StatusSnapshot) -> States:
    """The states of the processes. Stages are among the targets, until their targets tell of them."""
    states = {view.spec.name: view.state.value for view in views}
    others = {*NO_TARGETS, *names_of_stages(snapshot)}
    return States({name: state for name, state in states.items() if name not in others}, states.get(HUB))
