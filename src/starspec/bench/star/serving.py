"""Stars under measurement: targets that stay, a fresh hub for each turn, and the result of a turn.

In slow motion, modelled forwards take a multiple of their time, and results are in modelled time. Everything else
(scheduling, codec, sockets, load of other users) takes its real time and so counts less. This separates what the
protocol does from what a slow machine adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import TracebackType
from typing import Final, NamedTuple, Self

from starspec.bench.star.processes import TargetTimes, Turn, run_hub, run_target
from starspec.config import HubConfig, ModelConfig
from starspec.harness.children import BenchProcess, CoreSet
from starspec.stats import HubStats

_STAT: Final = Path("/proc/stat")


class StolenTime:
    """CPU time that other guests of the host took since this object was made. 0 on systems that do not report it."""

    def __init__(self) -> None:
        self._before = _read()

    @property
    def share(self) -> float:
        """Stolen share of the time of all cores until now."""
        now = _read()
        return (now.stolen - self._before.stolen) / max(1, now.whole - self._before.whole)


class _Ticks(NamedTuple):
    stolen: int
    whole: int


def _read() -> _Ticks:
    """See proc_stat(5): user nice system idle iowait irq softirq steal, of all cores since the start."""
    if not _STAT.exists():
        return _Ticks(0, 0)
    ticks = [int(each) for each in _STAT.read_text().partition("\n")[0].split()[1:9]]
    return _Ticks(ticks[7], sum(ticks))


class StarTargets:
    """Targets that wait for turns, each in its own process. A context manager.

    Args:
        model: of every target.
        run: the function of each process. Arguments: its end of a pipe, its name, the model. Messages are those of
            `run_target`.
    Raises: PeerLost if a target does not start.
    """

    def __init__(self, num_targets: int, model: ModelConfig, run: Callable[..., None] = run_target) -> None:
        with ExitStack() as stack:
            self.processes = [
                stack.enter_context(BenchProcess(run, f"target-{index}", model, cores=CoreSet.ALL_BUT_FIRST))
                for index in range(num_targets)
            ]
            for each in self.processes:
                each.receive()
            self.model = model.model
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            for each in self.processes:
                each.send(None)
        self._stack.__exit__(kind, error, trace)


@dataclass(frozen=True, slots=True)
class ServedTurn:
    """The result of one turn. The properties are in modelled time."""

    hub: HubStats
    targets: Sequence[TargetTimes]
    slow_motion: float = 1.0
    stolen: float = 0.0  # share of the machine's time that its other guests took in the turn

    @property
    def tokens_per_s(self) -> float:
        """O: tokens a second of all targets."""
        return sum(each.tokens_per_s for each in self.targets) * self.slow_motion

    @property
    def mean(self) -> float:
        """O_i: mean tokens a second of one target."""
        return self.tokens_per_s / len(self.targets)

    @property
    def lowest(self) -> float:
        """O_i of the slowest target."""
        return min(each.tokens_per_s for each in self.targets) * self.slow_motion

    @property
    def rounds_per_s(self) -> float:
        """R_p: rounds a second of all targets."""
        return sum(each.num_rounds / each.seconds for each in self.targets) * self.slow_motion

    @property
    def proposals_per_s(self) -> float:
        """R_q: rounds a second with a proposal of the hub."""
        return sum(each.num_proposals / each.seconds for each in self.targets) * self.slow_motion

    @property
    def tokens_per_round(self) -> float:
        return self.tokens_per_s / self.rounds_per_s

    @property
    def step_ms(self) -> float:
        """t_s, the time of a draft step as measured, with the overhead of sleeping."""
        return self._modelled_ms(self.hub.t_s.value)

    @property
    def service_ms(self) -> float:
        """S(d), as measured."""
        return self._modelled_ms(self.hub.service.of_all)

    @property
    def queue_ms(self) -> float:
        """T_wait: how long a request waits in the hub's buffer before it is served."""
        return self._modelled_ms(self.hub.queue.of_all)

    @property
    def idle_ms(self) -> float:
        """T_idle between two requests, as in StarSD's Table 1. Equation 9's, of an iteration, is N times as long."""
        return self._modelled_ms(self.hub.idle_per_request_s)

    @property
    def whole_idle_s(self) -> float:
        """T_idle of the whole turn: seconds in which the hub had tags and nothing to draft."""
        return self.hub.idle_s / self.slow_motion

    @property
    def wait_ms(self) -> float:
        """The hub's response time, as a round of a target waits for it. Not T_wait."""
        return self._modelled_ms(mean(each.wait_s for each in self.targets))

    @property
    def link_ms(self) -> float:
        """t_c, a round."""
        return self._modelled_ms(mean(each.link_s for each in self.targets))

    @property
    def verify_ms(self) -> float:
        """t_v, a round."""
        return self._modelled_ms(mean(each.verify_s for each in self.targets))

    def _modelled_ms(self, seconds: float) -> float:
        return seconds * 1e3 / self.slow_motion


def serve_turn(draft: ModelConfig, config: HubConfig, targets: StarTargets, num_targets: int, turn: Turn) -> ServedTurn:
    """Start a fresh hub and let the first `num_targets` targets use it for one turn.

    Raises: PeerLost if a process dies or hangs.
    """
    taking_part = targets.processes[:num_targets]
    with BenchProcess(run_hub, draft, config, turn.trace_folder, targets.model, cores=CoreSet.FIRST) as hub:
        endpoint = f"tcp://127.0.0.1:{hub.receive()}"
        for each in taking_part:
            each.send((endpoint, turn))
        for each in taking_part:
            each.receive()
        stolen = StolenTime()
        for each in taking_part:
            each.send("go")
        times = [each.receive() for each in taking_part]
        share = stolen.share
        hub.send("how was it?")
        stats = hub.receive()
        hub.send(None)
        return ServedTurn(stats, times, turn.slow_motion, share)


QUIET = 0.05  # share of the machine's time: if other guests took more in a turn, it was disturbed
MOST_AGAIN = 3


@dataclass(slots=True)
class SpareTurns:
    """The number of disturbed turns that may be repeated. Only the stolen time decides, never the measured result."""

    num_left: int

    def serve(
        self, draft: ModelConfig, config: HubConfig, targets: StarTargets, num_targets: int, turn: Turn
    ) -> ServedTurn:
        """Serve a turn, and repeat it up to MOST_AGAIN times while it is disturbed.

        Returns: the turn with the least stolen time.
        Effects: `num_left` falls by the number of repeats.
        """
        served = serve_turn(draft, config, targets, num_targets, turn)
        for _ in range(MOST_AGAIN):
            if served.stolen <= QUIET or not self.num_left:
                break
            self.num_left -= 1
            again = serve_turn(draft, config, targets, num_targets, turn)
            served = min(served, again, key=lambda each: each.stolen)
        return served
