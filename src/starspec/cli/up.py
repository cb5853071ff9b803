"""`starspec up`: a whole star on this machine, in one command."""

from __future__ import annotations

import http.client
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from starspec.cli import given
from starspec.cli.binder import bound, flag_of, take
from starspec.cli.display import Display, LineDisplay, TableDisplay
from starspec.cli.options import BatchingOptions
from starspec.cli.output import check_output
from starspec.cli.process import check_file, check_log
from starspec.cli.serve import TARGET_MODEL
from starspec.cli.speculation import DRAFT_OPTIONS, DraftOptions
from starspec.config import (
    GatewayConfig,
    HubConfig,
    ModelConfig,
    Option,
    ProcessConfig,
    SpeculativeConfig,
    TargetConfig,
    read_calibration,
)
from starspec.config.model import check_there
from starspec.config.network import LOOPBACK
from starspec.config.option import A_MODEL, MODELS, NONE_GIVEN, PROCESS
from starspec.errors import ConfigError, OutputError, StarspecError
from starspec.hub.checks import suited_to
from starspec.models.loading.checks import check_cut, check_declared_caches, check_models
from starspec.models.resolve import resolve_draft
from starspec.observe.trace import merge
from starspec.openmp import num_cores
from starspec.output_files import write_whole
from starspec.supervise.child import ChildState
from starspec.supervise.ports import PortReservations
from starspec.supervise.star import StarConfig, StarPorts, star_specs, trace_part
from starspec.supervise.supervisor import ChildView, Supervisor

STEP_S = 0.2  # between looks at signals and statuses
TOGETHER_S = 0.3


TARGET_LIMITS = ("max_num_seqs", "max_num_queued_reqs", "prefill_chunk", "allow_relaxed", "relaxed_thresholds")
POLICIES = (
    *("run_ahead", "share_prefixes", "audit_log"),
    *("max_batch", "scheduling", "weights", "slo_round_ms", "rate_limits", "admission"),
)
OF_A_DRAFT = ("draft_device", "draft_num_threads")
API = ("host", "port", "served_model_name", "api_key", "show_text", "request_timeout_s", "shutdown_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StarOptions:
    """How many targets there are, and where the draft runs."""

    num_targets: Annotated[int, Option("Target servers to start.", MODELS, ("--targets",), least=1, most=256)] = 2
    num_stages: Annotated[
        int,
        Option(
            "Stages that the model of each target is cut into, each in a process of its own; 1 = it is not cut.",
            MODELS,
            ("--stages",),
            least=1,
            most=64,
        ),
    ] = 1
    draft_device: Annotated[str | None, Option("Device that the draft runs on.", MODELS, shown="as --device")] = None
    draft_num_threads: Annotated[
        int | None,
        Option(
            "CPU threads of a draft step. A small head's draft step is too short for two threads to pay.",
            MODELS,
            least=1,
            shown="as --num-threads",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """How the command itself behaves."""

    table: Annotated[
        bool,
        Option(
            "The live table, if standard output is a terminal; a line now and then otherwise.",
            PROCESS,
            ("--table/--no-table",),
        ),
    ] = True
    start_timeout_s: Annotated[
        float,
        Option("Seconds that all processes have to become ready.", PROCESS, ("--start-timeout",), least=1.0),
    ] = 600.0
    ready_file: Annotated[
        Path | None,
        Option(
            "Write the addresses to this file as JSON once all processes are ready; "
            "starspec removes it when they stop.",
            PROCESS,
            shown=NONE_GIVEN,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_file(self.ready_file, "--ready-file")
        if self.ready_file is not None and self.ready_file.exists() and not self.ready_file.is_file():
            raise ConfigError(f"--ready-file: '{self.ready_file}' is not a regular file, and starspec would remove it")


@bound
def up(
    target: Annotated[
        str | None, typer.Argument(help="The same as --target.", metavar="MODEL", show_default=NONE_GIVEN)
    ] = None,
    *,
    model: Annotated[ModelConfig, take(*TARGET_MODEL, model="")],
    star: StarOptions,
    drafting: Annotated[DraftOptions, take(*DRAFT_OPTIONS)],
    api: Annotated[GatewayConfig, take(*API)],
    limits: Annotated[TargetConfig, take(*TARGET_LIMITS)],
    batching: BatchingOptions,
    hub: Annotated[HubConfig, take(*POLICIES)],
    draft: Annotated[ModelConfig, take("kv_budget_bytes", model="")],
    options: UpOptions,
    process: Annotated[ProcessConfig, take(log_level="warning")],
) -> None:
    """Start a draft server, targets and an OpenAI-compatible gateway on this machine, and keep them running.

    Ctrl-C stops them all once the requests in flight have ended; a second Ctrl-C does not wait for those. Exits 0 if
    all was ready by then, as every server here does, and otherwise 130 (143 after SIGTERM). `starspec serve` is another
    name of this command.
    """
    check_output()
    read_calibration(limits.relaxed_thresholds)  # before processes start that would all fail
    check_log(hub.audit_log)
    model = _of_model(model, target)
    speculative = drafting.to_config()
    _check_draft_options(speculative, star)
    for device in (model.device, star.draft_device, speculative.device if speculative else None):
        check_there(device or model.device)
    given.check_key_variable(api.api_key)
    config = StarConfig(
        model=model,
        num_targets=star.num_targets,
        num_stages=star.num_stages,
        target=replace(limits, batching=batching.to_config(), audit_log=hub.audit_log),
        speculative=speculative,
        hub=_suited_to(speculative, hub),
        draft=_run_as(model, draft, star),
        gateway=api,
        log_level=process.log_level,
    )
    trace = None if process.trace_file is None else Path(process.trace_file)
    with _trace_folder(trace) as trace_folder, PortReservations() as reservations:
        config = replace(config, trace_folder=trace_folder)
        ports = _reserve(reservations, config)
        # once, before several processes do
        check_models(model, config.draft_model)
        check_cut(model.model, star.num_stages)
        check_declared_caches(replace(model, num_rows=config.target.num_rows), star.num_targets, config.draft_model)
        specs = star_specs(config, ports, os.environ, num_cores=num_cores())
        display = TableDisplay() if options.table and TableDisplay.is_possible() else LineDisplay()
        with display, _removed(options.ready_file):
            with Supervisor(specs, display.show_log, display.show_line) as supervisor:
                code = _run(_Star(config, ports, supervisor, display), options)
            _merge_traces(config, supervisor.views, trace, display)
    if code:
        raise typer.Exit(code)


def _of_model(model: ModelConfig, name: str | None) -> ModelConfig:
    """The targets' model, which may be named with --target or without. Raises: ConfigError unless it is named once."""
    if name and model.model:
        raise ConfigError(f"the targets' model is given twice, as '{name}' and as --target '{model.model}': give one")
    if not (name or model.model):
        raise ConfigError(f"give the targets' model: starspec up MODEL, or --target MODEL, a {A_MODEL}")
    return replace(model, model=name or model.model)


def _run_as(model: ModelConfig, draft: ModelConfig, star: StarOptions) -> ModelConfig:
    """How the draft runs: as the targets do, except where an option says otherwise."""
    return replace(
        draft,
        dtype=model.dtype,
        device=star.draft_device or model.device,
        max_model_len=model.max_model_len,
        num_threads=star.draft_num_threads or model.num_threads,
    )


def _check_draft_options(speculative: SpeculativeConfig | None, star: StarOptions) -> None:
    """Raises: ConfigError if two places say where the draft runs, or if no draft model runs at all."""
    if star.draft_device is not None and speculative is not None and speculative.device is not None:
        raise ConfigError("--draft-device and 'device' in --speculative-config say the same thing: give one of them")
    given = [name for name in OF_A_DRAFT if getattr(star, name) is not None]
    if given and (speculative is None or not speculative.traits.needs_model):
        flags = " and ".join(flag_of(StarOptions, name) for name in given)
        raise ConfigError(f"{flags}: for draft models, and there is none here; leave it out, or give --draft MODEL")


def _suited_to(speculative: SpeculativeConfig | None, hub: HubConfig) -> HubConfig:
    """Check early, and not in a child. Raises: ConfigError if the draft cannot do what the hub is told."""
    return hub if speculative is None else suited_to(resolve_draft(speculative), hub)


@dataclass(frozen=True, slots=True)
class _Star:
    """A star while it runs."""

    config: StarConfig
    ports: StarPorts
    supervisor: Supervisor
    display: Display


@contextmanager
def _trace_folder(trace: Path | None) -> Iterator[Path | None]:
    if trace is None:
        yield None
        return
    check_file(trace, "--trace")
    with tempfile.TemporaryDirectory(prefix="starspec-trace-") as folder:
        yield Path(folder)


@contextmanager
def _removed(ready_file: Path | None) -> Iterator[None]:
    """Remove the ready file at the start, for an earlier run may have left one, and at the end."""
    if ready_file is None:
        yield
        return
    place = ready_file.resolve()  # a link stays a link
    place.unlink(missing_ok=True)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)


def _reserve(reservations: PortReservations, star: StarConfig) -> StarPorts:
    """Reserve all addresses before any process starts, so that all processes load their models at the same time."""
    return StarPorts(
        gateway=reservations.reserve(star.gateway.host, star.gateway.port),
        hub=reservations.reserve(LOOPBACK, 0),
        targets=tuple(reservations.reserve(LOOPBACK, 0) for _ in range(star.num_targets)),
        stages=() if star.num_stages == 1 else tuple(_reserve_stages(reservations, star)),
    )


def _reserve_stages(reservations: PortReservations, star: StarConfig) -> Iterator[tuple[int, ...]]:
    for _ in range(star.num_targets):
        yield tuple(reservations.reserve(LOOPBACK, 0) for _ in range(star.num_stages))


class _Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP. Two within TOGETHER_S count once: `timeout` and some shells send two.

    Behind `nohup`, SIGHUP stays without effect.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = 0  # the number of the first signal
        self._last_s = float("-inf")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:  # noqa: ARG002 (the signature of a handler)
        now, self.first = time.monotonic(), self.first or number
        if now - self._last_s > TOGETHER_S:
            self.count += 1
        self._last_s = now


def _run(star: _Star, options: UpOptions) -> int:
    """Run the star from start to end. On return every child has ended, in good order if possible.

    Returns: the exit code. A start that a signal ended has 128 and its number, as if that had not been handled.
    """
    interrupts, was_ready = _Interrupts(), False
    try:
        star.supervisor.start()
        _await_ready(star, options.start_timeout_s, interrupts)
        if not interrupts.count:
            was_ready = True
            _announce(star, options.ready_file)
        while not interrupts.count:
            star.supervisor.step(STEP_S)
            star.display.show(star.supervisor.views)
    finally:
        drain_s = star.config.drain_s if was_ready else 0.0
        if drain_s:
            star.display.show_line("up", f"stopping; requests in flight have {drain_s:g} s, Ctrl-C again ends them now")
        star.supervisor.stop(drain_s, is_impatient=lambda: interrupts.count > 1)
    return 0 if was_ready else 128 + interrupts.first


def _await_ready(star: _Star, timeout_s: float, interrupts: _Interrupts) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not interrupts.count and not (star.supervisor.is_ready and _is_healthy(star)):
        star.supervisor.step(STEP_S)
        star.display.show_start(star.supervisor.views)
        if time.monotonic() > deadline_s:
            late = [view for view in star.supervisor.views if view.state is not ChildState.READY]
            slow = ", ".join(f"{view.spec.name} ({view.detail})" for view in late)
            raise StarspecError(f"not ready within {timeout_s:g} s (--start-timeout): {slow}")


def _is_healthy(star: _Star) -> bool:
    """Whether the gateway has found a target."""
    connection = http.client.HTTPConnection(_reachable(star.config.gateway.host), star.ports.gateway, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _reachable(host: str) -> str:
    """An address at which this machine reaches what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (recognised, not bound)


def _announce(star: _Star, ready_file: Path | None) -> None:
    addresses = {view.spec.name: view.detail for view in star.supervisor.views}
    star.display.begin(star.ports, has_hub=star.config.speculative is not None)
    star.display.show_line("up", f"ready at {addresses['gateway']}/v1, dashboard at {addresses['gateway']}/dashboard")
    if ready_file is not None:
        write_whole(ready_file, msgspec.json.encode(addresses))


def _merge_traces(star: StarConfig, views: Sequence[ChildView], trace: Path | None, display: Display) -> None:
    """Raises: OutputError if a process could not write its part, or the whole cannot be written."""
    if trace is None or star.trace_folder is None:
        return
    parts = {view.spec.name: trace_part(star.trace_folder, view.spec.name) for view in views}
    traced = [view for view in views if view.spec.name != "gateway"]
    for view in traced:
        if view.state is ChildState.STOPPED and view.failure and not parts[view.spec.name].is_file():
            raise OutputError(f"{trace} is not written: {view.spec.name} failed at its end: {view.failure}")
    if not merge([parts[view.spec.name] for view in traced], trace):
        display.show_line("up", f"{trace} is not written: no process came so far as to trace anything")
        return
    lacking = [view.spec.name for view in traced if view.num_restarts or not parts[view.spec.name].is_file()]
    if lacking:
        display.show_line(
            "up", f"{trace} lacks what {', '.join(lacking)} did before dying: a process writes its part at its end"
        )
