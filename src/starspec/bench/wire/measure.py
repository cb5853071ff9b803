"""`starspec bench wire`: what one proposal costs beyond the drafter's own forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from starspec.bench.wire.echo import CurvePair, measure_echo, run_caller, run_echo
from starspec.bench.wire.processes import run_hub, run_target
from starspec.bench.wire.times import Interval, Overhead, uncovered_s
from starspec.config import ModelConfig
from starspec.harness.children import BenchProcess, CoreSet
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report, percentile
from starspec.harness.table import Block, Column, Table

NUM_DRAFT_TOKENS = 4
DRAFT_STEP_MS = 2.0  # t_s of a GPU draft as StarSD measured it (1.4 to 2.2 ms)
VERIFY_STEP_MS = 20.0  # t_v
MAX_MODEL_LEN = 128
ECHO_SIZES = (200, 64 * 1024)  # bytes: a proposal, and a proposal with features
WARM_UP_SHARE = 5  # the first fifth of the measurements is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class WirePlan:
    """How much to measure."""

    num_targets: tuple[int, ...] = (1, 8)
    num_requests: int = 250  # proposals a target, in each repeat
    num_repeats: int = 5
    num_echoes: int = 3000

    @property
    def num_turns(self) -> int:
        """How often `measure_wire` advances."""
        return len(self.num_targets) + 2 * len(ECHO_SIZES)  # each echo without keys, and with


QUICK = WirePlan(num_requests=80, num_repeats=3, num_echoes=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRow:
    """One measurement, in milliseconds outside of modelled forwards.

        target  ├ encode ┤                                                                      ├ decode ┤
        wire             ├ loopback ┤                                                  ├ loopback ┤
        hub                         ├ decode ─ schedule ┤ forward ├ schedule ┤ forward ├ write ┤
                └ outside: all of it, without the forwards       latency: the hub's part of it ┘

    Several requests wait at a hub at the same time, and work for one delays all. So the latency is given twice: as each
    request saw it, and divided equally among the waiting requests. The shares are what a request costs the hub; they
    add up to the time that the hub lost.

    The loopback is the round trip of a bare ZeroMQ echo that as many processes call as often, on processors that were
    idle before each call. Stars and echoes take turns; values are medians over the repeats. Hub and echo have a core
    of their own; the targets share the other cores, because they would be on other machines.
    """

    what: str
    num_targets: int | None  # None = a bare echo
    num_measured: int
    overhead_ms_p50: float | None  # hub's scheduling, codec and transport for one request: its share of the latency
    latency_ms_p50: float | None  # hub, from receiving a request to writing its proposal
    latency_ms_p90: float | None
    latency_ms_p99: float | None
    outside_ms_p50: float | None  # the part of the round trip outside of forwards
    loopback_ms_p50: float | None
    overhead_ms_p50_by_repeat: list[float]
    loopback_ms_p50_by_repeat: list[float]
    round_trip_ms_p50: float  # from before the verdict is encoded until the proposal is decoded


def measure_wire(plan: WirePlan, advance: Callable[[str], None]) -> Report:
    """Run synthetic stars and bare echoes, one after the other.

    Args:
        advance: called with what is about to be measured, `plan.num_turns` times.
    Raises: PeerLost if a process dies or hangs.
    """
    rows = []
    for num_targets in plan.num_targets:
        advance(f"star of {num_targets}")
        rows.append(_star_row(num_targets, plan))
    for num_bytes in ECHO_SIZES:
        for curve in (None, CurvePair()):
            advance(f"echo of {num_bytes} bytes")
            rows.append(_echo_row(num_bytes, curve, plan.num_echoes))
    notes = {
        "synthetic": True,
        "num_draft_tokens": NUM_DRAFT_TOKENS,
        "draft_step_ms": DRAFT_STEP_MS,
        "verify_step_ms": VERIFY_STEP_MS,
    }
    return Report(collect_provenance(), rows, notes=notes)


def _star_row(num_targets: int, plan: WirePlan) -> WireRow:
    stars, loopback_p50 = [], []
    for _ in range(plan.num_repeats):
        stars.append(run_star(num_targets, plan.num_requests))
        loopback_p50.append(percentile(run_callers(num_targets, plan.num_requests), 50))
    overhead_p50 = [percentile(star.shares_s, 50) for star in stars]
    latency_p50 = [percentile(star.latencies_s, 50) for star in stars]
    latencies_s = _joined(star.latencies_s for star in stars)
    return WireRow(
        what=f"hub with {num_targets} target{'s' if num_targets > 1 else ''}",
        num_targets=num_targets,
        num_measured=len(latencies_s),
        overhead_ms_p50=_ms(median(overhead_p50)),
        latency_ms_p50=_ms(median(latency_p50)),
        latency_ms_p90=_ms(percentile(latencies_s, 90)),
        latency_ms_p99=_ms(percentile(latencies_s, 99)),
        outside_ms_p50=_ms(percentile(_joined(star.outside_s for star in stars), 50)),
        loopback_ms_p50=_ms(median(loopback_p50)),
        overhead_ms_p50_by_repeat=[_ms(each) for each in overhead_p50],
        loopback_ms_p50_by_repeat=[_ms(each) for each in loopback_p50],
        round_trip_ms_p50=_ms(percentile(_joined(star.round_trips_s for star in stars), 50)),
    )


def _joined(parts: Iterable[list[float]]) -> list[float]:
    return [each for part in parts for each in part]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


@dataclass(frozen=True, slots=True)
class StarTimes:
    """The times of one run of a star.

    Args:
        sent: one interval for each request as its target saw it, without the warm-up.
        served: one interval for each request as the hub saw it, with the warm-up, in order of their ends.
        forwards: of the drafter, ascending.
    """

    sent: Sequence[Interval]
    served: Sequence[Interval]
    forwards: Sequence[Interval]

    @property
    def round_trips_s(self) -> list[float]:
        return [each.length_s for each in self.sent]

    @property
    def outside_s(self) -> list[float]:
        return [uncovered_s(each, self.forwards) for each in self.sent]

    @property
    def latencies_s(self) -> list[float]:
        overhead = Overhead(self.served, self.forwards)
        return [overhead.whole_s(each) for each in _warm(self.served)]

    @property
    def shares_s(self) -> list[float]:
        overhead = Overhead(self.served, self.forwards)
        return [overhead.share_s(each) for each in _warm(self.served)]


def run_callers(num_callers: int, num_calls: int) -> list[float]:
    """Run a bare echo and its callers, each in its own process. They call as often as targets do.

    Returns: seconds of all round trips, without the warm-up.
    """
    pause_s = (VERIFY_STEP_MS + NUM_DRAFT_TOKENS * DRAFT_STEP_MS) / 1e3
    with ExitStack() as stack:
        echo = stack.enter_context(BenchProcess(run_echo, None, cores=CoreSet.FIRST))
        port = echo.receive()
        callers = [
            stack.enter_context(
                BenchProcess(run_caller, port, ECHO_SIZES[0], num_calls, pause_s, cores=CoreSet.ALL_BUT_FIRST)
            )
            for _ in range(num_callers)
        ]
        times = _measure_together(callers)
        echo.send("stop")
    return times


def run_star(num_targets: int, num_requests: int) -> StarTimes:
    """Run a hub and its targets, each in its own process."""
    draft = ModelConfig(
        model=f"synthetic:role=draft,step_ms={DRAFT_STEP_MS}",
        num_rows=num_targets,
        max_model_len=MAX_MODEL_LEN,
        num_threads=1,  # tensors are tiny; with more threads, nine processes would only wait for each other
    )
    target = ModelConfig(
        model=f"synthetic:role=target,step_ms={VERIFY_STEP_MS}",
        num_rows=1,
        max_model_len=MAX_MODEL_LEN,
        num_threads=1,
    )
    with ExitStack() as stack:
        hub = stack.enter_context(BenchProcess(run_hub, draft, cores=CoreSet.FIRST))
        endpoint = f"tcp://127.0.0.1:{hub.receive()}"
        targets = [
            stack.enter_context(
                BenchProcess(
                    run_target,
                    endpoint,
                    f"target-{index}",
                    target,
                    NUM_DRAFT_TOKENS,
                    num_requests,
                    cores=CoreSet.ALL_BUT_FIRST,
                )
            )
            for index in range(num_targets)
        ]
        sent = _measure_together(targets)
        hub.send("stop")
        served, forwards = hub.receive()
        return StarTimes(sent, served, forwards)


def _measure_together(processes: Sequence[BenchProcess]) -> list[Any]:
    """Start all processes at the same time. Returns: all their measurements, without the warm-up."""
    for each in processes:
        each.receive()
    for each in processes:
        each.send("go")
    return [value for each in processes for value in _warm(each.receive())]


def _warm(measured: Sequence[Any]) -> Sequence[Any]:
    return measured[len(measured) // WARM_UP_SHARE :]


def _echo_row(num_bytes: int, curve: CurvePair | None, num_echoes: int) -> WireRow:
    with BenchProcess(run_echo, curve) as echo:
        times = measure_echo(echo.receive(), num_bytes, curve, num_echoes)
        echo.send("stop")
    times = times[num_echoes // WARM_UP_SHARE :]
    return WireRow(
        what=f"bare ZeroMQ echo of {num_bytes} bytes" + (", CURVE" if curve else ""),
        num_targets=None,
        num_measured=len(times),
        overhead_ms_p50=None,
        latency_ms_p50=None,
        latency_ms_p90=None,
        latency_ms_p99=None,
        outside_ms_p50=None,
        loopback_ms_p50=None,
        overhead_ms_p50_by_repeat=[],
        loopback_ms_p50_by_repeat=[],
        round_trip_ms_p50=_ms(percentile(times, 50)),
    )


COLUMNS = (
    Column("what", "what"),
    Column("measured", "num_measured"),
    Column("overhead p50", "overhead_ms_p50", ".3f"),
    Column("latency p50", "latency_ms_p50", ".3f"),
    Column("p90", "latency_ms_p90", ".3f"),
    Column("p99", "latency_ms_p99", ".3f"),
    Column("outside p50", "outside_ms_p50", ".3f"),
    Column("bare echo", "loopback_ms_p50", ".3f"),
    Column("round trip p50", "round_trip_ms_p50", ".3f"),
)
TITLE = (
    "milliseconds outside of the drafter's modelled forwards (synthetic accelerators); latency = of the hub, "
    "overhead = latency shared among those that wait, outside = of the round trip"
)


def blocks(report: Report) -> list[Block]:
    """What people read: one row for each star and each echo."""
    return [Table(TITLE, COLUMNS, report.rows)]
