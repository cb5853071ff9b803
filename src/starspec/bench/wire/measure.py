"""`starspec bench wire`: what one proposal costs beyond the drafter's own computing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from starspec.bench.provenance import collect_provenance
from starspec.bench.report import Report
from starspec.bench.wire.clock import Interval, percentile, uncovered_s
from starspec.bench.wire.echo import CurvePair, measure_echo, run_echo
from starspec.bench.wire.hub_process import run_hub
from starspec.bench.wire.processes import BenchProcess
from starspec.bench.wire.target_process import run_target
from starspec.config import ModelConfig

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
    num_requests: int = 500  # proposals a target
    num_echoes: int = 3000


QUICK = WirePlan(num_requests=150, num_echoes=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRow:
    """One measurement; milliseconds."""

    what: str
    num_targets: int | None  # None: a bare echo
    num_measured: int
    overhead_ms_p50: float | None  # of a request's round trip, outside the drafter's forwards; None: a bare echo
    overhead_ms_p90: float | None
    overhead_ms_p99: float | None
    round_trip_ms_p50: float  # from before a verdict is encoded until after its proposal is decoded


def measure_wire(plan: WirePlan, advance: Callable[[str], None]) -> Report:
    """Run synthetic stars and bare echoes, one after the other.

    Args:
        advance: called with what is about to be measured.
    Raises: PeerLost if a process dies or hangs.
    """
    rows = []
    for num_targets in plan.num_targets:
        advance(f"star of {num_targets}")
        rows.append(_star_row(num_targets, plan.num_requests))
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


def _star_row(num_targets: int, num_requests: int) -> WireRow:
    requests, forwards = run_star(num_targets, num_requests)
    overheads = [uncovered_s(request, forwards) * 1e3 for request in requests]
    return WireRow(
        what=f"hub with {num_targets} target{'s' if num_targets > 1 else ''}",
        num_targets=num_targets,
        num_measured=len(requests),
        overhead_ms_p50=round(percentile(overheads, 0.5), 4),
        overhead_ms_p90=round(percentile(overheads, 0.9), 4),
        overhead_ms_p99=round(percentile(overheads, 0.99), 4),
        round_trip_ms_p50=round(percentile([each.length_s * 1e3 for each in requests], 0.5), 4),
    )


def run_star(num_targets: int, num_requests: int) -> tuple[list[Interval], list[Interval]]:
    """A hub and its targets, each a process of its own.

    Returns: the requests of all targets without those of the warm-up; the drafter's forwards, ascending.
    """
    draft = ModelConfig(
        model=f"synthetic:role=draft,step_ms={DRAFT_STEP_MS}", num_rows=num_targets, max_model_len=MAX_MODEL_LEN
    )
    target = ModelConfig(
        model=f"synthetic:role=target,step_ms={VERIFY_STEP_MS}", num_rows=1, max_model_len=MAX_MODEL_LEN
    )
    with ExitStack() as stack:
        hub = stack.enter_context(BenchProcess(run_hub, draft))
        endpoint = f"tcp://127.0.0.1:{hub.hear()}"
        targets = [
            stack.enter_context(
                BenchProcess(run_target, endpoint, f"target-{index}", target, NUM_DRAFT_TOKENS, num_requests)
            )
            for index in range(num_targets)
        ]
        for each in targets:
            each.hear()
        for each in targets:
            each.say("go")
        requests = [request for each in targets for request in _warm(each.hear())]
        hub.say("stop")
        return requests, hub.hear()


def _warm(measured: Sequence[Interval]) -> Sequence[Interval]:
    return measured[len(measured) // WARM_UP_SHARE :]


def _echo_row(num_bytes: int, curve: CurvePair | None, num_echoes: int) -> WireRow:
    with BenchProcess(run_echo, curve) as echo:
        times = measure_echo(echo.hear(), num_bytes, curve, num_echoes)
        echo.say("stop")
    times = times[num_echoes // WARM_UP_SHARE :]
    return WireRow(
        what=f"bare ZeroMQ echo of {num_bytes} bytes" + (", CURVE" if curve else ""),
        num_targets=None,
        num_measured=len(times),
        overhead_ms_p50=None,
        overhead_ms_p90=None,
        overhead_ms_p99=None,
        round_trip_ms_p50=round(percentile(times, 0.5) * 1e3, 4),
    )
