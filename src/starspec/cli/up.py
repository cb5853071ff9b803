"""`starspec up`: a whole star on this machine, in one command."""

from __future__ import annotations

import http.client
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.display import Display, LineDisplay, TableDisplay
from starspec.cli.process import check_folder
from starspec.cli.speculation import DraftOptions
from starspec.config import HubConfig, ModelConfig, SpeculativeConfig, TargetConfig
from starspec.errors import ConfigError, StarspecError
from starspec.observe.trace import merge
from starspec.supervise.child import ChildState
from starspec.supervise.ports import PortReservations
from starspec.supervise.star import LOOPBACK, StarConfig, StarPorts, star_specs, trace_part
from starspec.supervise.supervisor import ChildView, Supervisor

STEP_S = 0.2  # between looks at signals and statuses
TOGETHER_S = 0.3


def up(
    *,
    target: opt.TargetModel,
    targets: Annotated[
        int, typer.Option(min=1, max=256, help="Target servers to start.", rich_help_panel=opt.MODELS)
    ] = 2,
    draft: opt.DraftModel = None,
    draft_quantization: opt.DraftQuantization = None,
    spec_method: opt.SpecMethod = None,
    spec_tokens: opt.SpecTokens = None,
    draft_p_min: opt.DraftPMin = None,
    speculative_config: opt.SpeculativeJson = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    device: opt.Device = opt.MODEL.device,
    draft_device: Annotated[
        str | None,
        typer.Option(help="As --device, for the draft.", show_default="as --device", rich_help_panel=opt.MODELS),
    ] = None,
    numerics: opt.Numerics = opt.MODEL.numerics,
    max_model_len: opt.MaxModelLen = None,
    num_threads: opt.NumThreads = None,
    draft_num_threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="As --num-threads, for the draft; a layer of a small head is over before two threads have met.",
            show_default="as --num-threads",
            rich_help_panel=opt.MODELS,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address that the HTTP API listens on.", rich_help_panel=opt.NETWORK)] = (
        opt.GATEWAY.host
    ),
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port of the HTTP API; 0 = any free one.", rich_help_panel=opt.NETWORK),
    ] = opt.GATEWAY.port,
    served_model_name: opt.ServedModelName = None,
    api_key: opt.ApiKey = None,
    max_num_seqs: opt.MaxNumSeqs = opt.TARGET.max_num_seqs,
    batching: opt.Batching = opt.TARGET.batching.method,
    window: opt.Window = None,
    max_passed_over: opt.MaxPassedOver = None,
    max_num_queued_reqs: opt.MaxNumQueuedReqs = opt.TARGET.max_num_queued_reqs,
    prefill_chunk: opt.PrefillChunk = opt.TARGET.prefill_chunk,
    run_ahead: opt.RunAheadMode = opt.HUB.run_ahead,
    share_prefixes: opt.SharePrefixes = opt.HUB.share_prefixes,
    max_batch: opt.MaxBatchText = "auto",
    scheduling: opt.DraftScheduling = opt.HUB.scheduling,
    weights: opt.Weights = None,
    slo_round_ms: opt.SloRoundMs = None,
    rate_limit: opt.RateLimit = None,
    admission: opt.AdmissionText = "off",
    kv_budget: opt.KvBudget = None,
    table: Annotated[
        bool,
        typer.Option(
            help="The live table, if standard output is a terminal; a line now and then otherwise.",
            rich_help_panel=opt.PROCESS,
        ),
    ] = True,
    start_timeout: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds that all processes have to become ready.", rich_help_panel=opt.PROCESS),
    ] = 600.0,
    shutdown_timeout: opt.ShutdownTimeout = opt.GATEWAY.shutdown_timeout_s,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="Write the addresses to this file as JSON once all processes are ready; it goes when they stop.",
            show_default=opt.NONE_GIVEN,
            rich_help_panel=opt.PROCESS,
        ),
    ] = None,
    trace: opt.TraceFile = None,
    log_level: opt.LogLevel = "warning",
) -> None:
    """Start a draft server, targets and an OpenAI-compatible gateway on this machine, and keep them running.

    Ctrl-C stops them all once the requests in flight have ended; a second Ctrl-C does not wait for those.
    """
    speculative = DraftOptions(
        json_text=speculative_config,
        method=spec_method,
        model=draft,
        quantization=draft_quantization,
        num_tokens=spec_tokens,
        p_min=draft_p_min,
    ).to_config()
    limits = TargetConfig(
        max_num_seqs=max_num_seqs,
        batching=given.batching_config(batching, window, max_passed_over),
        max_num_queued_reqs=max_num_queued_reqs,
        prefill_chunk=prefill_chunk,
    )
    hub = HubConfig(
        run_ahead=run_ahead,
        share_prefixes=share_prefixes,
        max_batch=given.max_batch(max_batch),
        scheduling=scheduling,
        weights=given.by_name(weights, "--weights"),
        slo_round_ms=given.by_name(slo_round_ms, "--slo-round-ms"),
        rate_limits=given.by_name(rate_limit, "--rate-limit"),
        admission=given.admission(admission),
    )
    if api_key == "":
        raise ConfigError("--api-key is empty: give a key, or leave the option out to ask for none")
    given.check_key_variable(api_key)
    check_folder(ready_file, "--ready-file")
    served_name = () if served_model_name is None else ("--served-model-name", served_model_name)
    with _trace_folder(trace) as trace_folder, PortReservations() as reservations:
        star = StarConfig(
            model=ModelConfig(
                model=target,
                dtype=dtype,
                device=device,
                numerics=numerics,
                max_model_len=max_model_len,
                num_threads=num_threads,
            ),
            num_targets=targets,
            target=limits,
            speculative=speculative,
            hub=_suited_to(speculative, hub),
            kv_budget_bytes=given.num_bytes(kv_budget, "--kv-budget"),
            draft_device=draft_device or device,
            draft_num_threads=draft_num_threads or num_threads,
            num_draft_rows=targets * limits.num_rows,
            host=host,
            port=port,
            gateway_arguments=served_name,
            drain_s=shutdown_timeout,
            log_level=log_level,
            trace_folder=trace_folder,
        )
        environ = dict(os.environ) if api_key is None else {**os.environ, "STARSPEC_API_KEY": api_key}
        ports = _reserve(reservations, star)
        _find_models(target, speculative)
        specs = star_specs(star, ports, environ, num_cores=len(os.sched_getaffinity(0)))
        display = TableDisplay() if table and TableDisplay.is_possible() else LineDisplay()
        with display, _removed(ready_file):
            with Supervisor(specs, display.say) as supervisor:
                _run(_Star(star, ports, supervisor, display), start_timeout, ready_file)
            _merge_traces(star, supervisor.views, trace, display)


def _suited_to(speculative: SpeculativeConfig | None, hub: HubConfig) -> HubConfig:
    """Raises: ConfigError if the draft cannot do what the hub is told: here, and not in a process that is restarted."""
    if speculative is None or (hub.run_ahead, hub.share_prefixes) == (opt.HUB.run_ahead, opt.HUB.share_prefixes):
        return hub
    from starspec.hub.build import suited_to  # noqa: PLC0415 (imports torch)

    return suited_to(speculative, hub)


def _find_models(target: str, speculative: SpeculativeConfig | None) -> None:
    """Find the models once, before several processes look for them. Raises: ModelError if one is not there.

    Effects: downloads a hub id and converts a .gguf file, with a progress bar, unless that has been done.
    """
    from starspec.models.loading.locate import is_synthetic, locate  # noqa: PLC0415 (a mistake is told before)

    for model in dict.fromkeys([target, (speculative.model if speculative else None) or target]):
        if not is_synthetic(model):
            locate(model)


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
    check_folder(trace, "--trace")
    with tempfile.TemporaryDirectory(prefix="starspec-trace-") as folder:
        yield Path(folder)


@contextmanager
def _removed(ready_file: Path | None) -> Iterator[None]:
    """The file of an earlier run that was killed says nothing of this one, and this one's nothing after its end."""
    if ready_file is None:
        yield
        return
    ready_file.unlink(missing_ok=True)
    try:
        yield
    finally:
        ready_file.unlink(missing_ok=True)


def _reserve(reservations: PortReservations, star: StarConfig) -> StarPorts:
    """All addresses before any process starts, so that all can load their models at the same time."""
    return StarPorts(
        gateway=reservations.reserve(star.host, star.port),
        hub=reservations.reserve(LOOPBACK, 0),
        targets=tuple(reservations.reserve(LOOPBACK, 0) for _ in range(star.num_targets)),
    )


class _Interrupts:
    """Counts SIGINT and SIGTERM; those that come together count once, as `timeout` and some shells send two."""

    def __init__(self) -> None:
        self.count = 0
        self._last_s = float("-inf")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:  # noqa: ARG002 (the signature of a handler)
        now = time.monotonic()
        if now - self._last_s > TOGETHER_S:
            self.count += 1
        self._last_s = now


def _run(star: _Star, start_timeout_s: float, ready_file: Path | None) -> None:
    """From start to end; on return every child has ended, in good order if they could."""
    interrupts, was_ready = _Interrupts(), False
    try:
        star.supervisor.start()
        _await_ready(star, start_timeout_s, interrupts)
        if not interrupts.count:
            was_ready = True
            _announce(star, ready_file)
        while not interrupts.count:
            star.supervisor.step(STEP_S)
            star.display.show(star.supervisor.views)
    finally:
        drain_s = star.config.drain_s if was_ready else 0.0
        if drain_s:
            star.display.say("up", f"stopping; requests in flight have {drain_s:g} s, Ctrl-C again ends them now")
        star.supervisor.stop(drain_s, is_impatient=lambda: interrupts.count > 1)


def _await_ready(star: _Star, timeout_s: float, interrupts: _Interrupts) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not interrupts.count and not (star.supervisor.is_ready and _is_healthy(star)):
        star.supervisor.step(STEP_S)
        star.display.show_start(star.supervisor.views)
        if time.monotonic() > deadline_s:
            late = [view for view in star.supervisor.views if view.state is not ChildState.READY]
            story = ", ".join(f"{view.spec.name} ({view.detail})" for view in late)
            raise StarspecError(f"not ready within {timeout_s:g} s (--start-timeout): {story}")


def _is_healthy(star: _Star) -> bool:
    """Whether the gateway has found a target."""
    connection = http.client.HTTPConnection(_reachable(star.config.host), star.ports.gateway, timeout=1.0)
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
    star.display.say("up", f"ready at {addresses['gateway']}/v1")
    if ready_file is not None:
        partial = ready_file.with_name(f".{ready_file.name}.{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(addresses))
        partial.replace(ready_file)


def _merge_traces(star: StarConfig, views: Sequence[ChildView], trace: Path | None, display: Display) -> None:
    if trace is None or star.trace_folder is None:
        return
    parts = {view.spec.name: trace_part(star.trace_folder, view.spec.name) for view in views}
    traced = [view for view in views if str(parts[view.spec.name]) in view.spec.command]
    merge([parts[view.spec.name] for view in traced], trace)
    lacking = [view.spec.name for view in traced if view.num_restarts or not parts[view.spec.name].is_file()]
    if lacking:
        display.say(
            "up", f"{trace} lacks what {', '.join(lacking)} did before dying: a process writes its part at its end"
        )
