"""`starspec draft`, `target`, `gateway`: one server each."""

from __future__ import annotations

import os
import socket
from typing import Annotated, Any, Literal

import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.process import ServerProcess, log_to_stderr
from starspec.cli.speculation import DraftOptions
from starspec.config import (
    MIN_LEASE_S,
    MIN_SERVING_LEASE_S,
    GatewayConfig,
    HubConfig,
    ModelConfig,
    SpeculativeConfig,
    TargetConfig,
)
from starspec.errors import ConfigError


def _lease(min_s: float) -> Any:
    return typer.Option(
        min=min_s, help="Seconds of silence after which a caller's work is freed.", rich_help_panel=opt.LIMITS
    )


def draft(
    *,
    draft: opt.DraftModel = None,
    draft_quantization: opt.DraftQuantization = None,
    spec_method: opt.SpecMethod = None,
    speculative_config: opt.SpeculativeJson = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The target model: an EAGLE head borrows its embedding; a draft model must share its vocabulary (each "
            "target is checked in any case when it connects).",
            show_default=opt.NONE_GIVEN,
            rich_help_panel=opt.MODELS,
        ),
    ] = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    device: opt.Device = opt.MODEL.device,
    max_model_len: opt.MaxModelLen = None,
    num_threads: opt.NumThreads = None,
    host: opt.Host = opt.HUB.host,
    port: opt.Port = opt.HUB.port,
    data_ports: Annotated[
        str | None,
        typer.Option(
            help="Ports for the targets' own links, FIRST-LAST.",
            show_default="any free ones",
            rich_help_panel=opt.NETWORK,
        ),
    ] = None,
    keys: opt.Keys = None,
    insecure: opt.Insecure = False,
    max_num_seqs: opt.DraftSessions = 32,
    kv_budget: opt.KvBudget = None,
    max_targets: Annotated[int, typer.Option(min=1, help="Targets at once.", rich_help_panel=opt.LIMITS)] = (
        opt.HUB.max_targets
    ),
    max_tags: Annotated[
        int, typer.Option(min=1, help="Sequences at once, over all targets.", rich_help_panel=opt.LIMITS)
    ] = opt.HUB.max_tags,
    max_draft_tokens: Annotated[
        int, typer.Option(min=1, max=64, help="Draft tokens of one proposal, at most.", rich_help_panel=opt.LIMITS)
    ] = opt.HUB.max_draft_tokens,
    lease: Annotated[float, _lease(MIN_LEASE_S)] = opt.HUB.lease_s,
    prefill_chunk: opt.PrefillChunk = opt.HUB.prefill_chunk,
    max_batch: opt.MaxBatchText = "auto",
    scheduling: opt.DraftScheduling = opt.HUB.scheduling,
    weights: opt.Weights = None,
    slo_round_ms: opt.SloRoundMs = None,
    rate_limit: opt.RateLimit = None,
    admission: opt.AdmissionText = "off",
    run_ahead: opt.RunAheadMode = opt.HUB.run_ahead,
    share_prefixes: opt.SharePrefixes = opt.HUB.share_prefixes,
    trace: opt.TraceFile = None,
    log_level: opt.LogLevel = "info",
) -> None:
    """Run a draft server: the hub that proposes tokens to any number of targets."""
    process = ServerProcess("hub", trace)
    with process.reporting_failure():
        options = DraftOptions(
            json_text=speculative_config, method=spec_method, model=draft, quantization=draft_quantization
        )
        speculative = options.to_config() or SpeculativeConfig()
        if speculative.model is None and speculative.traits.needs_model:
            raise ConfigError("a draft server needs a draft: give --draft MODEL, or --spec-method ngram")
        if kv_budget is not None and not speculative.traits.needs_model:
            raise ConfigError(f"--kv-budget is of draft models: method '{speculative.method}' keeps no keys and values")
        config = HubConfig(
            host=host,
            port=port,
            data_ports=_port_range(data_ports),
            keys=str(keys) if keys else None,
            insecure=insecure,
            max_targets=max_targets,
            max_tags=max_tags,
            max_draft_tokens=max_draft_tokens,
            lease_s=lease,
            prefill_chunk=prefill_chunk,
            max_batch=given.max_batch(max_batch),
            scheduling=scheduling,
            weights=given.by_name(weights, "--weights"),
            slo_round_ms=given.by_name(slo_round_ms, "--slo-round-ms"),
            rate_limits=given.by_name(rate_limit, "--rate-limit"),
            admission=given.admission(admission),
            run_ahead=run_ahead,
            share_prefixes=share_prefixes,
        )
        model = None
        if speculative.model is not None:
            model = ModelConfig(
                model=speculative.model,
                dtype=dtype,
                device=device,
                quantization=speculative.quantization,
                numerics="fast",  # a draft's last bits decide nothing
                max_model_len=speculative.max_model_len or max_model_len,
                num_rows=max_num_seqs,
                kv_budget_bytes=given.num_bytes(kv_budget, "--kv-budget"),
                num_threads=num_threads,
            )
        log_to_stderr(log_level)
        with process.loading(f"loading draft {speculative.model or speculative.method}"):
            from starspec.hub.server import DraftServer  # noqa: PLC0415 (imports torch)
            from starspec.models.heads.load import is_head  # noqa: PLC0415
            from starspec.models.loading.tokenizer import check_pair  # noqa: PLC0415

            if target is not None and model is not None and target != model.model and not is_head(speculative):
                check_pair(target, model.model)
            server = DraftServer(config, speculative, model, target, process.trace)
        process.serve(server.address, server.run, server.stop, server.memory)


def target(
    *,
    target: opt.TargetModel,
    hub: opt.HubEndpoint = None,
    spec_method: opt.SpecMethod = None,
    spec_tokens: opt.SpecTokens = None,
    draft_p_min: opt.DraftPMin = None,
    speculative_config: opt.SpeculativeJson = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name in metrics, tables and traces.", show_default="host name and port", rich_help_panel=opt.PROCESS
        ),
    ] = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    device: opt.Device = opt.MODEL.device,
    numerics: opt.Numerics = opt.MODEL.numerics,
    max_model_len: opt.MaxModelLen = None,
    num_threads: opt.NumThreads = None,
    host: opt.Host = opt.TARGET.host,
    port: opt.Port = opt.TARGET.port,
    keys: opt.Keys = None,
    insecure: opt.Insecure = False,
    max_num_seqs: opt.MaxNumSeqs = opt.TARGET.max_num_seqs,
    batching: opt.Batching = opt.TARGET.batching.method,
    window: opt.Window = None,
    max_passed_over: opt.MaxPassedOver = None,
    max_num_queued_reqs: opt.MaxNumQueuedReqs = opt.TARGET.max_num_queued_reqs,
    prefill_chunk: opt.PrefillChunk = opt.TARGET.prefill_chunk,
    lease: Annotated[float, _lease(MIN_SERVING_LEASE_S)] = opt.TARGET.lease_s,
    shutdown_timeout: opt.ShutdownTimeout = opt.TARGET.shutdown_timeout_s,
    trace: opt.TraceFile = None,
    log_level: opt.LogLevel = "info",
) -> None:
    """Run a target server: it answers gateways, with the tokens of its own model and nothing else."""
    name = name or f"{socket.gethostname()}:{port or os.getpid()}"
    process = ServerProcess(name, trace)
    with process.reporting_failure():
        speculative = DraftOptions(
            json_text=speculative_config,
            method=spec_method,
            num_tokens=spec_tokens,
            p_min=draft_p_min,
            hub=hub,
            keys=str(keys) if keys else None,
            insecure=insecure,
        ).to_config()
        config = TargetConfig(
            name=name,
            host=host,
            port=port,
            keys=str(keys) if keys else None,
            insecure=insecure,
            max_num_seqs=max_num_seqs,
            batching=given.batching_config(batching, window, max_passed_over),
            max_num_queued_reqs=max_num_queued_reqs,
            prefill_chunk=prefill_chunk,
            lease_s=lease,
            shutdown_timeout_s=shutdown_timeout,
        )
        model = ModelConfig(
            model=target,
            dtype=dtype,
            device=device,
            numerics=numerics,
            max_model_len=max_model_len,
            num_rows=config.num_rows,
            num_threads=num_threads,
        )
        log_to_stderr(log_level)
        with process.loading(f"loading target {target}"):
            from starspec.engine.build import build_server  # noqa: PLC0415 (imports torch)

            server = build_server(config, model, speculative, process.trace)
        process.serve(server.address, server.run, server.stop, server.memory)


def gateway(
    *,
    target: Annotated[
        str,
        typer.Option(
            help=f"The targets' model, for its tokenizer and chat template: {opt.A_MODEL}.", rich_help_panel=opt.MODELS
        ),
    ],
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="A target server, tcp://HOST:PORT; may be repeated. Without one, --hub's metrics are served alone.",
            show_default=opt.NONE_GIVEN,
            rich_help_panel=opt.NETWORK,
        ),
    ] = None,
    hub: Annotated[
        str | None,
        typer.Option(
            help="Public port of the draft server, tcp://HOST:PORT, to show it in /metrics.",
            show_default=opt.NONE_GIVEN,
            rich_help_panel=opt.NETWORK,
        ),
    ] = None,
    host: opt.Host = opt.GATEWAY.host,
    port: opt.Port = opt.GATEWAY.port,
    served_model_name: opt.ServedModelName = None,
    api_key: opt.ApiKey = None,
    generation_config: Annotated[
        Literal["auto", "ignore"],
        typer.Option(
            help="auto: the model's generation_config.json gives a request's defaults; ignore: it does not.",
            rich_help_panel=opt.MODELS,
        ),
    ] = opt.GATEWAY.generation_config,
    keys: opt.Keys = None,
    insecure: opt.Insecure = False,
    max_body_bytes: Annotated[
        int, typer.Option(min=1, help="Longest request body, in bytes.", rich_help_panel=opt.LIMITS)
    ] = opt.GATEWAY.max_body_bytes,
    keep_alive: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds after which a silent stream gets a comment.", rich_help_panel=opt.LIMITS),
    ] = opt.GATEWAY.keep_alive_s,
    shutdown_timeout: opt.ShutdownTimeout = opt.GATEWAY.shutdown_timeout_s,
    log_level: opt.LogLevel = "info",
) -> None:
    """Run the OpenAI-compatible gateway in front of one or several targets."""
    process = ServerProcess("gateway", trace_file=None)
    with process.reporting_failure():
        given.check_key_variable(api_key)
        config = GatewayConfig(
            host=host,
            port=port,
            targets=tuple(endpoint or ()),
            hub=hub,
            model=target,
            served_model_name=served_model_name,
            api_key=api_key,
            keys=str(keys) if keys else None,
            insecure=insecure,
            max_body_bytes=max_body_bytes,
            generation_config=generation_config,
            keep_alive_s=keep_alive,
            shutdown_timeout_s=shutdown_timeout,
        )
        log_to_stderr(log_level)
        with process.loading(f"loading the tokenizer of {target}"):
            from starspec.gateway.server import GatewayServer  # noqa: PLC0415 (imports transformers)

            server = GatewayServer(config)
        process.serve(server.address, server.run, server.stop)


def _port_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last) < 65536):
        raise ConfigError(f"--data-ports must be FIRST-LAST, as in 7701-7764, not '{text}'")
    return int(first), int(last)
