"""From one star's config to the processes of the star, each with the config that it is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from starspec.config import (
    GatewayConfig,
    GatewayProcess,
    HubConfig,
    HubProcess,
    LogLevel,
    ModelConfig,
    PipeConfig,
    ProcessConfig,
    ServerConfig,
    SpeculativeConfig,
    StageConfig,
    StageProcess,
    TargetConfig,
    TargetProcess,
    nearest,
)
from starspec.config.network import LOOPBACK
from starspec.config.stages import check_drafts_of_stages, stage_name
from starspec.errors import ConfigError
from starspec.supervise.child import ChildSpec

STAGES_START_S: Final = 3600.0  # `up` has a limit of its own for the whole start
STAGE_RESTART_S: Final = 120.0  # for a stage that died to be started again, and to load its layers
LAST_WORDS_S: Final = 1.0  # of a star's drain, for the gateway to answer requests that did not end in time
# Order of stopping: a process stops before those that it asks for work.
GATEWAY_STAGE, TARGET_STAGE, HUB_STAGE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class StarConfig:
    """One hub, several targets, one gateway, linked on this machine at ports that are reserved for them."""

    model: ModelConfig  # of the targets
    num_targets: int
    num_stages: int = 1  # of each target; 1 = its model is not cut
    target: TargetConfig  # of each target, except for its name and address
    speculative: SpeculativeConfig | None  # None: no hub, targets decode plainly
    hub: HubConfig = field(default_factory=HubConfig)  # except for its address and what follows from the targets
    draft: ModelConfig  # how the draft runs; `speculative` names it
    gateway: GatewayConfig  # except for its targets and hub
    log_level: LogLevel = "warning"
    trace_folder: Path | None = None  # where each process writes NAME.json

    def __post_init__(self) -> None:
        if self.num_targets < 1:
            raise ConfigError(f"a star needs at least one target, got {self.num_targets}")
        if self.num_stages > 1:
            check_drafts_of_stages(self.speculative)
        hub = replace(self.hub, audit_log=None)  # which all processes have
        if self.speculative is None and (hub != HubConfig() or self.draft.kv_budget_bytes is not None):
            raise ConfigError("options of the draft server need one: give --draft MODEL, or --spec-method ngram")
        if self.speculative is not None:
            _check_speculative(self.speculative)
        self.target.check_drafts(self.speculative)
        names = [target_name(number) for number in range(self.num_targets)]
        for name in (*self.hub.weights, *self.hub.slo_round_ms, *self.hub.rate_limits):
            if name not in names:
                raise ConfigError(f"there is no target '{name}' in this star{nearest(name, names)}")

    @property
    def draft_model(self) -> ModelConfig | None:
        """What drafts, with a row for each sequence of each target; None if no model does."""
        if self.speculative is None:
            return None
        return self.speculative.draft_model(replace(self.draft, num_rows=self.num_targets * self.target.num_rows))

    @property
    def drain_s(self) -> float:
        """Time for requests in flight when the star stops."""
        return self.gateway.shutdown_timeout_s


def _check_speculative(speculative: SpeculativeConfig) -> None:
    remote = speculative.remote
    if remote.endpoint is not None:
        raise ConfigError("remote.endpoint names a hub elsewhere, but `starspec up` starts its own: leave it out")
    if remote.keys is not None or remote.insecure:
        raise ConfigError(
            "remote.keys and remote.insecure are for a hub elsewhere, but `starspec up` starts its own: leave them out"
        )
    if speculative.model is None and speculative.traits.needs_model:
        raise ConfigError("a star that is told how to draft needs a draft: give --draft MODEL, or --spec-method ngram")


@dataclass(frozen=True, slots=True, kw_only=True)
class StarPorts:
    """Where the processes meet."""

    hub: int
    targets: tuple[int, ...]
    gateway: int
    stages: tuple[tuple[int, ...], ...] = ()  # of each target; () = none is cut

    @property
    def hub_endpoint(self) -> str:
        return f"tcp://{LOOPBACK}:{self.hub}"

    @property
    def target_endpoints(self) -> tuple[str, ...]:
        return tuple(f"tcp://{LOOPBACK}:{port}" for port in self.targets)


def star_specs(star: StarConfig, ports: StarPorts, environ: Mapping[str, str], num_cores: int) -> list[ChildSpec]:
    """The children to start, all at once.

    Args:
        environ: this process's environment; what it says of threads is kept.
        num_cores: CPU cores that the children share.
    """
    environment = child_environment(environ, num_cores, num_busy=star.num_targets * star.num_stages)
    targets = [_target(star, ports, number, environment) for number in range(star.num_targets)]
    stages = [_stage(star, ports, *place, environment) for place in _stage_places(ports)]
    hub = [] if star.speculative is None else [_hub(star, star.speculative, ports, environment)]
    return [*hub, *stages, *targets, _gateway(star, ports, environment)]


def child_environment(environ: Mapping[str, str], num_cores: int, num_busy: int) -> dict[str, str]:
    """What several processes with models need to share one machine.

    Args:
        num_busy: processes that compute at the same time. Hub and targets mostly take turns, so the targets count.
    """
    defaults = {
        "OMP_NUM_THREADS": str(max(1, num_cores // num_busy)),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",  # what a child prints is seen when it is printed
    }
    return {**defaults, **environ}


def _hub(star: StarConfig, speculative: SpeculativeConfig, ports: StarPorts, environment: dict[str, str]) -> ChildSpec:
    num_rows = star.num_targets * star.target.num_rows
    hub = replace(
        star.hub,
        host=LOOPBACK,
        port=ports.hub,
        max_tags=max(star.hub.max_tags, num_rows),  # a row for each is useless otherwise
        max_targets=max(star.hub.max_targets, star.num_targets),
    )
    process = _process(star, "hub")
    config = HubProcess(
        hub=hub, speculative=speculative, draft=star.draft_model, target=star.model.model, process=process
    )
    return hub_spec(config, environment)


def hub_spec(config: HubProcess, environment: dict[str, str]) -> ChildSpec:
    """A hub to start. It only makes targets faster: they go on without it."""
    return _spec("draft", config, environment, stop_stage=HUB_STAGE, is_essential=False)


def _target(star: StarConfig, ports: StarPorts, number: int, environment: dict[str, str]) -> ChildSpec:
    name = target_name(number)
    pipe = PipeConfig()
    if ports.stages:
        endpoints = tuple(f"tcp://{LOOPBACK}:{port}" for port in ports.stages[number])
        pipe = replace(star.target.pipe, stages=endpoints, start_timeout_s=STAGES_START_S, wait_s=STAGE_RESTART_S)
    target = replace(
        star.target, name=name, host=LOOPBACK, port=ports.targets[number], pipe=pipe, shutdown_timeout_s=star.drain_s
    )
    model = replace(star.model, num_rows=target.num_rows)
    speculative = None if star.speculative is None else _of_target(star.speculative, ports.hub_endpoint)
    config = TargetProcess(target=target, model=model, speculative=speculative, process=_process(star, name))
    return _spec("target", config, environment, stop_stage=TARGET_STAGE)


def _stage_places(ports: StarPorts) -> list[tuple[int, int]]:
    """Target and place of each stage."""
    return [(number, place) for number, stages in enumerate(ports.stages) for place in range(len(stages))]


def _stage(star: StarConfig, ports: StarPorts, number: int, place: int, environment: dict[str, str]) -> ChildSpec:
    name = stage_name(target_name(number), place)
    listen = f"tcp://{LOOPBACK}:{ports.stages[number][place]}"
    stage = StageConfig(layers=f"{place + 1}/{star.num_stages}", listen=listen, audit_log=star.target.audit_log)
    model = replace(star.model, num_rows=star.target.num_rows)
    config = StageProcess(stage=stage, model=model, process=_process(star, name), name=name)
    return _spec("stage", config, environment, stop_stage=HUB_STAGE)


def _gateway(star: StarConfig, ports: StarPorts, environment: dict[str, str]) -> ChildSpec:
    gateway = replace(
        star.gateway,
        port=ports.gateway,
        model=star.model.model,
        audit_log=star.target.audit_log,
        targets=ports.target_endpoints,
        hub=None if star.speculative is None else ports.hub_endpoint,
        shutdown_timeout_s=max(0.0, star.drain_s - LAST_WORDS_S),
    )
    config = GatewayProcess(gateway=gateway, process=ProcessConfig(log_level=star.log_level))
    return _spec("gateway", config, environment, stop_stage=GATEWAY_STAGE)


def _spec(
    command: str, config: ServerConfig, environment: dict[str, str], *, stop_stage: int, is_essential: bool = True
) -> ChildSpec:
    """A process list shows command and name; the rest, which may hold a secret, is on the child's standard input."""
    return ChildSpec(
        name=config.name,
        command=(sys.executable, "-P", "-m", "starspec", "child", command, config.name),
        stdin=msgspec.json.encode(config),
        environment=environment,
        stop_stage=stop_stage,
        is_essential=is_essential,
    )


def _process(star: StarConfig, name: str) -> ProcessConfig:
    trace_file = None if star.trace_folder is None else str(trace_part(star.trace_folder, name))
    return ProcessConfig(log_level=star.log_level, trace_file=trace_file)


def target_name(number: int) -> str:
    """The name of a target in the hub, the metrics and the table."""
    return f"target-{number}"


def trace_part(folder: Path, name: str) -> Path:
    """Where the process of that name writes its part of the trace."""
    return folder / f"{name}.json"


def _of_target(speculative: SpeculativeConfig, hub_endpoint: str) -> SpeculativeConfig:
    """What a target needs to know. The method says which length policies fit; all else about the draft is the hub's."""
    remote = replace(speculative.remote, endpoint=hub_endpoint)
    return replace(speculative.without_draft(), remote=remote)
