"""`starspec draft`, `target`, `stage`, `gateway`: one server each; `starspec keygen`: the keys of their links."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, assert_never

import msgspec
import typer

from starspec.cli import given
from starspec.cli.binder import REQUIRED, bound, flag_of, take
from starspec.cli.files import check_folder, folder_named
from starspec.cli.options import BatchingOptions
from starspec.cli.output import check_output
from starspec.cli.process import Server, ServerProcess, check_log
from starspec.cli.speculation import DraftOptions
from starspec.config import (
    SERVERS,
    GatewayConfig,
    GatewayProcess,
    HubConfig,
    HubProcess,
    ModelConfig,
    ProcessConfig,
    ServerConfig,
    SpeculativeConfig,
    StageConfig,
    StageProcess,
    TargetConfig,
    TargetProcess,
    read_calibration,
)
from starspec.config.option import MODELS, NONE_GIVEN, PROCESS
from starspec.engine import checks as target_checks
from starspec.errors import ConfigError
from starspec.gateway import checks as gateway_checks
from starspec.hub import checks as hub_checks
from starspec.models.loading.checks import check_layers, check_settings, find_models, find_pair
from starspec.models.loading.transformers_calls import hide_torch
from starspec.models.resolve import resolve_draft
from starspec.stages import checks as stage_checks
from starspec.tracing import Tracer

TARGET_MODEL = ("model", "dtype", "device", "numerics", "max_model_len", "num_threads")
DRAFT_MODEL = ("dtype", "device", "max_model_len", "num_threads", "num_rows", "kv_budget_bytes")
OF_A_RUNNER = ("device", "numerics", "num_threads")
NUM_DRAFT_ROWS = 32


@bound
def draft(
    *,
    drafting: Annotated[DraftOptions, take("model", "quantization", "method", "json_text")],
    target: Annotated[
        str | None,
        typer.Option(
            help="The target model: an EAGLE head borrows its embedding; a draft model must share its vocabulary (each "
            "target is checked in any case when it connects).",
            show_default=NONE_GIVEN,
            rich_help_panel=MODELS,
        ),
    ] = None,
    model: Annotated[ModelConfig, take(*DRAFT_MODEL, model="", num_rows=NUM_DRAFT_ROWS)],
    hub: HubConfig,
    process: ProcessConfig,
) -> None:
    """Run a draft server: the hub that proposes tokens to any number of targets."""
    speculative = drafting.to_config() or SpeculativeConfig()
    if speculative.model is None and speculative.traits.needs_model:
        raise ConfigError("a draft server needs a draft: give --draft MODEL, or --spec-method ngram")
    hub_checks.check_own(speculative)
    draft = speculative.draft_model(model)
    if draft is None and (model, target) != (ModelConfig(model="", num_rows=NUM_DRAFT_ROWS), None):
        flags = ", ".join(["--target", *(flag_of(ModelConfig, each) for each in DRAFT_MODEL)])
        raise ConfigError(f"{flags} are for draft models, and method '{speculative.method}' has none: leave them out")
    serve(HubProcess(hub=hub, speculative=speculative, draft=draft, target=target, process=process))


@bound
def target(
    *,
    model: Annotated[ModelConfig, take(*TARGET_MODEL)],
    drafting: Annotated[DraftOptions, take("hub", "method", "num_speculative_tokens", "draft_p_min", "json_text")],
    name: Annotated[
        str | None,
        typer.Option(
            help="Name in metrics, tables and traces.", show_default="host name and port", rich_help_panel=PROCESS
        ),
    ] = None,
    server: TargetConfig,
    batching: BatchingOptions,
    process: ProcessConfig,
) -> None:
    """Run a target server: it answers gateways, with the tokens of its own model and nothing else."""
    server = replace(
        server, name=name or f"{socket.gethostname()}:{server.port or os.getpid()}", batching=batching.to_config()
    )
    speculative = drafting.to_config(server.keys, server.insecure)
    if server.pipe.stages:
        _check_runs_elsewhere(model)
    model = replace(model, num_rows=server.num_rows)
    serve(TargetProcess(target=server, model=model, speculative=speculative, process=process))


def _check_runs_elsewhere(model: ModelConfig) -> None:
    """Raises: ConfigError that names options of a process that computes: this one has its model in stages."""
    defaults = ModelConfig(model=model.model)
    given = [flag_of(ModelConfig, each) for each in OF_A_RUNNER if getattr(model, each) != getattr(defaults, each)]
    if given:
        raise ConfigError(f"{', '.join(given)}: the stages run the model; leave it out here, and give it to them")


@bound
def stage(
    *,
    model: Annotated[ModelConfig, take(*TARGET_MODEL, "num_rows")],
    server: Annotated[StageConfig, take(layers=REQUIRED)],
    process: ProcessConfig,
) -> None:
    """Run a stage: some layers of a target's model, on a machine of their own. `starspec target --stages` uses it."""
    serve(StageProcess(stage=server, model=model, process=process, name=f"stage {server.layers}"))


@bound
def gateway(
    *,
    server: Annotated[GatewayConfig, take(model=REQUIRED, targets=())],
    process: Annotated[ProcessConfig, take("log_level")],
) -> None:
    """Run the OpenAI-compatible gateway in front of one or several targets."""
    given.check_key_variable(server.api_key)
    serve(GatewayProcess(gateway=server, process=process))


def keygen(
    folder: Annotated[
        Path,
        typer.Argument(
            parser=folder_named,
            callback=check_folder,
            help="Folder to make; must not hold keys yet.",
            metavar="FOLDER",
        ),
    ],
) -> None:
    """Make the keys that encrypt links between machines: one pair each for hub, targets, stages and gateways."""
    check_output()  # or keys would be left behind that nobody was told of
    from starspec.wire.keys import generate_keys  # noqa: PLC0415 (imports ZeroMQ)

    for path in generate_keys(folder):
        print(path)
    print(
        "Give each machine the secret of its own role, and the public keys of the roles that it talks to. "
        "Pass --keys FOLDER there."
    )


def child(
    command: Annotated[str, typer.Argument(help="draft, target, stage or gateway.", metavar="COMMAND")],
    name: Annotated[str, typer.Argument(help="Name that process lists show.", metavar="NAME")],  # noqa: ARG001 (as it says)
) -> None:
    """Run the server that standard input describes as JSON. For `starspec up`, which starts its servers so."""
    try:
        kind = SERVERS[command]
        config = msgspec.json.decode(sys.stdin.buffer.read(), type=kind)
    except (KeyError, msgspec.DecodeError) as error:
        raise ConfigError("`starspec child` is for `starspec up`: use draft, target, stage or gateway") from error
    serve(config)


def serve(config: ServerConfig) -> None:
    """Run one server in this process until it is stopped.

    Raises: StarspecError if it cannot start.
    """
    check_log(config.audit_log)
    process = ServerProcess(config.name, config.process)
    with process.reporting_failure():
        _check(config)
        with process.loading(config.load):
            server = _load(config, process.trace)
        process.serve(server)


def _check(config: ServerConfig) -> None:
    """Check addresses, ports, keys and names of models: torch and transformers take seconds to import.

    Raises: ConfigError, ModelError. Effects: as find_pair.
    """
    match config:
        case HubProcess():
            hub_checks.keys_of(config.hub)
            draft = resolve_draft(config.speculative)
            hub_checks.suited_to(draft, config.hub)
            target = config.target if draft.head is None else hub_checks.target_of_head(config.target)
            find_pair(target, config.speculative.model)
            check_settings(config.draft)
        case TargetProcess():
            target_checks.keys_of(config.target)
            target_checks.check_stages(config.target)
            target_checks.check_hub(config.speculative)
            target_checks.check_others(config.target, config.speculative)
            read_calibration(config.target.relaxed_thresholds)
            find_pair(config.model.model)
            check_settings(config.model, are_read=not config.target.pipe.stages)
        case StageProcess(stage=stage):
            stage_checks.check_addresses(stage)
            find_pair(config.model.model)
            check_layers(config.model.model, stage.layers)
            check_settings(config.model)
        case GatewayProcess():
            gateway_checks.keys_of(config.gateway)
            gateway_checks.check_names(config.gateway)
            gateway_checks.open_port(config.gateway.host, config.gateway.port).close()
            find_models(*gateway_checks.models_of(config.gateway))
            for model in gateway_checks.models_of(config.gateway):
                find_pair(model)
        case _:
            assert_never(config)


def _load(config: ServerConfig, trace: Tracer | None) -> Server:
    """Each server imports torch or transformers, which takes seconds: not before it is known which one runs."""
    match config:
        case HubProcess():
            from starspec.hub.server import DraftServer  # noqa: PLC0415

            return DraftServer(config.hub, config.speculative, config.draft, config.target, trace)
        case TargetProcess():
            from starspec.engine.build import build_server  # noqa: PLC0415

            return build_server(config.target, config.model, config.speculative, trace)
        case StageProcess():
            from starspec.stages.build import build_stage  # noqa: PLC0415

            return build_stage(config.stage, config.model, trace)
        case GatewayProcess():
            from starspec.gateway.server import GatewayServer  # noqa: PLC0415

            hide_torch()
            return GatewayServer(config.gateway)
        case _:
            assert_never(config)
