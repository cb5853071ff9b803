"""Keeps a set of child processes running, and stops them all.

One thread, one selector: what children report, what they print and that they exit all arrive in `step`. A child
hangs, or is started again, when `policy/vitals.py` says so.
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
from starspec.policy.vitals import HANGS_S, SILENT_S, Vitals, fails_for_good, was_suspended
from starspec.supervise.child import Child, ChildSpec, ChildState
from starspec.supervise.report import HURRY, Alive, Failed, Loading, Ready, Report

EXIT_WAIT_S = 2.0  # from the moment that a child closes its line to its end
LATE_STAGE_GRACE_S = 2.0  # what a stage gets at least, when the stages before it used up the time
HURRY_S = 2.0  # what a stage gets when nobody wants to wait

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
    failure: str = ""  # what its last run said of its failure, or why it was killed


@dataclass(slots=True)
class _Slot:
    """A child through all its runs."""

    view: ChildView
    run: Child | None = None
    vitals: Vitals = field(default_factory=Vitals)
    was_ready: bool = False
    restart_at_s: float = float("inf")
    last_end: str = ""  # why the run before this one ended

    @property
    def is_hopeless(self) -> bool:
        """Whether it was given up and does not serve now. A start that is under way does not count: most fail."""
        return self.vitals.is_given_up and self.view.state not in (ChildState.READY, ChildState.SILENT)


class Supervisor:
    """Starts the children together, restarts those that die or hang, stops them stage by stage. A context manager.

    Args:
        specs: the children; their names differ.
        on_output: called with every line that a child prints.
        on_news: called with what the supervisor says of a child; None = as on_output.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        on_output: OnOutput,
        on_news: OnOutput | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = [_Slot(ChildView(spec)) for spec in specs]
        self._on_output = on_output
        self._on_news = on_news or on_output
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._stepped_s = clock()
        self._is_stopping = False

    @property
    def views(self) -> list[ChildView]:
        return [slot.view for slot in self._slots]

    @property
    def is_ready(self) -> bool:
        """Whether every child serves, but for those that were given up."""
        return all(slot.view.state is ChildState.READY or slot.vitals.is_given_up for slot in self._slots)

    def start(self) -> None:
        """Start every child. Raises: StarspecError if one cannot be started."""
        for slot in self._slots:
            self._start(slot)

    def step(self, timeout_s: float) -> None:
        """Handle reports, output and deaths of children; kill those that hang; restart those whose delay is over.

        Args:
            timeout_s: how long to wait for something to happen.
        Raises: ConfigError or StarspecError if a child failed before it was ever ready, or if nothing can serve any
            more.
        """
        due_s = min(slot.restart_at_s for slot in self._slots) - self._clock()
        wait_s = max(0.0, min(timeout_s, due_s))
        events = self._selector.select(wait_s)
        self._note_time(wait_s)
        for key, _ in events:
            slot, take_in = key.data
            take_in(slot)
        for slot in self._slots:
            self._check(slot)
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

    def _note_time(self, waited_s: float) -> None:
        """If this process was suspended, its children may have been as well: they get their time anew."""
        now = self._clock()
        if was_suspended(now - self._stepped_s, waited_s):
            for slot in self._slots:
                if slot.run is not None:
                    slot.vitals.hear(now)
        self._stepped_s = now

    def _check(self, slot: _Slot) -> None:
        """Show that a child is silent, and kill it if it hangs. A child that is being stopped has its own deadline."""
        if slot.run is None or self._is_stopping:
            return
        view, now = slot.view, self._clock()
        if slot.vitals.hangs(now):
            said = f"it hung, without a sign of life for {slot.vitals.silence_s(now):.0f} s, and was killed"
            slot.view.failure = slot.view.failure or said
            slot.run.send(signal.SIGKILL)
        elif view.state is ChildState.READY and slot.vitals.is_silent(now):
            view.state = ChildState.SILENT
            self._on_news(view.spec.name, f"no sign of life for {SILENT_S:g} s; after {HANGS_S:g} s it is killed")

    def _start(self, slot: _Slot) -> None:
        spec = slot.view.spec
        slot.restart_at_s, slot.view.failure = float("inf"), ""
        slot.vitals.start(self._clock())
        try:
            slot.run = Child(spec)
        except OSError as error:  # of this machine, such as too many processes: a later try may succeed
            slot.view.detail = f"cannot be started: {error}"
            if not slot.was_ready:
                raise StarspecError(f"{spec.name} {slot.view.detail}") from error
            self._plan_restart(slot)
            return
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
        view = slot.view
        slot.vitals.hear(self._clock())
        match report:
            case Alive():
                if view.state is ChildState.SILENT:
                    view.state = ChildState.READY
                    self._on_news(view.spec.name, "lives again")
            case Loading(what=what):
                view.detail = what
            case Ready(address=address, memory=memory):
                view.state, view.detail, view.memory = ChildState.READY, address, memory
                slot.vitals.become_ready(self._clock())
                slot.was_ready = True
                if view.num_restarts:
                    self._on_news(view.spec.name, "ready again")
            case Failed(reason=reason):
                view.failure = reason

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
        slot.view.detail = slot.view.failure or _how_it_ended(code)
        if not self._is_stopping:
            self._after_death(slot, code)

    def _after_death(self, slot: _Slot, code: int) -> None:
        """Raises: ConfigError or StarspecError if the child will fail again, or if nothing can serve any more."""
        if fails_for_good(code, was_ready=slot.was_ready):
            kind = ConfigError if code == 2 else StarspecError
            raise kind(f"{slot.view.spec.name} cannot start: {slot.view.detail}")
        self._plan_restart(slot)

    def _plan_restart(self, slot: _Slot) -> None:
        """Raises: StarspecError if nothing can serve any more."""
        view, now = slot.view, self._clock()
        slot.last_end = view.detail
        delay_s = slot.vitals.die(now)
        slot.restart_at_s = now + delay_s
        if not slot.vitals.is_given_up:
            view.state = ChildState.WAITING
            self._on_news(view.spec.name, f"{view.detail}; starting it again in {delay_s:g} s")
            return
        view.state = ChildState.GIVEN_UP
        alike = [each for each in self._slots if _can_replace(each.view.spec, view.spec)]
        if alike and all(each.is_hopeless for each in alike):
            raise StarspecError(f"nothing can serve any more: {'; '.join(map(_obituary, alike))}")
        self._on_news(view.spec.name, f"{_obituary(slot)}. Going on without it; trying again in {delay_s:g} s")

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


def _can_replace(other: ChildSpec, spec: ChildSpec) -> bool:
    """Whether the star can serve with `other` instead of `spec`; of each, with itself. Nothing replaces a helper."""
    return spec.is_essential and other.is_essential and other.stop_stage == spec.stop_stage


def _obituary(slot: _Slot) -> str:
    return f"{slot.view.spec.name} ended {slot.vitals.num_deaths} times in a row, the last time: {slot.last_end}"
