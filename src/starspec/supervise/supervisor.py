"""Keeps a set of child processes running, and stops them all.

One thread, one selector: what children report, what they print and that they exit all arrive in `step`.
"""

from __future__ import annotations

import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from starspec.errors import ConfigError, StarspecError
from starspec.supervise.child import Child, ChildSpec, ChildState
from starspec.supervise.report import HURRY, Failed, Loading, Ready, Report

EXIT_WAIT_S = 2.0  # from the moment that a child closes its line to its end
LATE_STAGE_GRACE_S = 2.0  # what a stage gets at least, when the stages before it used up the time
HURRY_S = 2.0  # what a stage gets when nobody wants to wait

FIRST_DELAY_S = 0.25  # of a restart; it doubles with each death within the window
MAX_DELAY_S = 8.0
MAX_DEATHS = 5  # within the window; then a child is given up
WINDOW_S = 60.0

OnOutput = Callable[[str, str], None]  # (child's name, line)


@dataclass(slots=True)
class ChildView:
    """A child as a person sees it."""

    spec: ChildSpec
    state: ChildState = ChildState.STOPPED
    detail: str = ""  # what it loads, where it serves, or why it ended
    memory: str = ""  # what it keeps for sequences, once it is ready
    num_restarts: int = 0
    pid: int | None = None


@dataclass(slots=True)
class _Slot:
    """A child through all its runs."""

    view: ChildView
    run: Child | None = None
    was_ready: bool = False
    restart_at_s: float = float("inf")
    deaths_s: list[float] = field(default_factory=list)
    failure: str | None = None  # what this run said of its failure


class Supervisor:
    """Starts the children together, restarts the dead ones, stops them stage by stage. A context manager.

    Args:
        specs: the children; their names differ.
        on_output: called with every line that a child prints or that the supervisor says of it.
    """

    def __init__(
        self, specs: Sequence[ChildSpec], on_output: OnOutput, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = [_Slot(ChildView(spec)) for spec in specs]
        self._on_output = on_output
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._is_stopping = False

    @property
    def views(self) -> list[ChildView]:
        return [slot.view for slot in self._slots]

    @property
    def is_ready(self) -> bool:
        """Whether every child serves, but for those that the others can do without and that were given up."""
        return all(view.state in (ChildState.READY, ChildState.GIVEN_UP) for view in self.views)

    def start(self) -> None:
        """Start every child. Raises: StarspecError if one cannot be started."""
        for slot in self._slots:
            self._start(slot)

    def step(self, timeout_s: float) -> None:
        """Handle reports, output and deaths of children; restart children whose delay is over.

        Args:
            timeout_s: how long to wait for something to happen.
        Raises: ConfigError or StarspecError if a child failed before it was ever ready, or if one that the others
            cannot do without was given up.
        """
        due_s = min(slot.restart_at_s for slot in self._slots) - self._clock()
        for key, _ in self._selector.select(max(0.0, min(timeout_s, due_s))):
            slot, take_in = key.data
            take_in(slot)
        for slot in self._slots:
            if self._clock() >= slot.restart_at_s:
                slot.view.num_restarts += 1
                self._start(slot)

    def stop(self, drain_s: float, is_impatient: Callable[[], bool] = lambda: False) -> None:
        """End every child, stage by stage: ask it to stop, and kill it when the time is over.

        Args:
            drain_s: time for work in flight, over all stages.
            is_impatient: whether not to wait for that work. Children then get a signal to hurry, and each stage has
                HURRY_S to write its files and its last output.
        Effects: every child of ours has ended on return.
        """
        self._is_stopping = True
        for slot in self._slots:
            slot.restart_at_s = float("inf")
        deadline_s = self._clock() + drain_s
        for stage in sorted({slot.view.spec.stop_stage for slot in self._slots}):
            running = [slot for slot in self._slots if slot.view.spec.stop_stage == stage and slot.run]
            self._signal(running, signal.SIGTERM)
            stage_deadline_s = max(deadline_s, self._clock() + LATE_STAGE_GRACE_S)
            self._wait_for(running, stage_deadline_s, is_impatient)
            if is_impatient():
                self._signal(running, HURRY)
                self._wait_for(running, self._clock() + HURRY_S)
            self._signal(running, signal.SIGKILL)
            self._wait_for(running, float("inf"))

    def _wait_for(
        self, slots: Sequence[_Slot], until_s: float, is_impatient: Callable[[], bool] = lambda: False
    ) -> None:
        while any(slot.run for slot in slots) and self._clock() < until_s and not is_impatient():
            self.step(min(0.1, until_s - self._clock()))

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Whatever happened, no child is left."""
        self.stop(drain_s=0.0, is_impatient=lambda: kind is not None)
        self._selector.close()

    def _start(self, slot: _Slot) -> None:
        spec = slot.view.spec
        try:
            slot.run = Child(spec)
        except OSError as error:
            raise StarspecError(f"{spec.name} cannot be started: {error}") from error
        slot.restart_at_s, slot.failure = float("inf"), None
        slot.view.state, slot.view.detail, slot.view.pid = ChildState.STARTING, "starting", slot.run.pid
        self._selector.register(slot.run.line, selectors.EVENT_READ, (slot, self._take_reports))
        self._selector.register(slot.run.output, selectors.EVENT_READ, (slot, self._take_output))

    def _take_reports(self, slot: _Slot) -> None:
        if slot.run is None:  # it ended in this very step
            return
        reports = slot.run.read_reports()
        if reports is None:
            self._handle_exit(slot, slot.run)
            return
        for report in reports:
            self._take(slot, report)

    def _take(self, slot: _Slot, report: Report) -> None:
        match report:
            case Loading(what=what):
                slot.view.detail = what
            case Ready(address=address, memory=memory):
                slot.view.state, slot.view.detail, slot.view.memory = ChildState.READY, address, memory
                slot.was_ready = True
            case Failed(reason=reason):
                slot.failure = reason

    def _take_output(self, slot: _Slot) -> None:
        if slot.run is None:
            return
        lines = slot.run.read_output()
        if lines is None:
            self._selector.unregister(slot.run.output)
            return
        for line in lines:
            self._on_output(slot.view.spec.name, line)

    def _handle_exit(self, slot: _Slot, run: Child) -> None:
        """A child has closed its line: wait for its end, pass on its last output, and decide whether to restart it."""
        code = _wait(run)
        while lines := run.read_output():
            for line in lines:
                self._on_output(slot.view.spec.name, line)
        for pipe in (run.line, run.output):
            if pipe in self._selector.get_map():
                self._selector.unregister(pipe)
        run.close()
        slot.run, slot.view.pid = None, None
        slot.view.state = ChildState.STOPPED
        slot.view.detail = slot.failure or _how_it_ended(code)
        if not self._is_stopping:
            self._after_death(slot, code)

    def _after_death(self, slot: _Slot, code: int) -> None:
        view = slot.view
        if not slot.was_ready:
            kind = ConfigError if code == 2 else StarspecError
            raise kind(f"{view.spec.name} cannot start: {view.detail}")
        slot.deaths_s.append(self._clock())
        delay_s = restart_delay_s(slot.deaths_s)
        if delay_s is not None:
            view.state, slot.restart_at_s = ChildState.WAITING, slot.deaths_s[-1] + delay_s
            self._on_output(view.spec.name, f"{view.detail}; starting it again in {delay_s:g} s")
            return
        view.state = ChildState.GIVEN_UP
        story = f"{view.spec.name} ended too often within {WINDOW_S:g} s, the last time: {view.detail}"
        if view.spec.is_essential:
            raise StarspecError(story)
        self._on_output(view.spec.name, f"{story}; going on without it")

    def _signal(self, slots: Sequence[_Slot], number: signal.Signals) -> None:
        for slot in slots:
            if slot.run is not None:
                slot.run.send(number)


def _wait(run: Child) -> int:
    try:
        return run.wait(EXIT_WAIT_S)
    except subprocess.TimeoutExpired:
        run.send(signal.SIGKILL)
        return run.wait(EXIT_WAIT_S)


def _how_it_ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def restart_delay_s(deaths_s: Sequence[float]) -> float | None:
    """How long to wait before the next start.

    Args:
        deaths_s: times of the child's deaths, the newest last.
    Returns: seconds, doubling with each death of the last minute; None = give it up.
    """
    recent = [death_s for death_s in deaths_s if death_s > deaths_s[-1] - WINDOW_S]
    if len(recent) > MAX_DEATHS:
        return None
    return float(min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** (len(recent) - 1)))
