"""From what the operator asked for to the processes of a star on one machine: pure, but for the ports it is given."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from starspec.config import MAX_DRAFT_TOKENS, HubConfig, ModelConfig, SpeculativeConfig, TargetConfig, nearest
from starspec.errors import ConfigError
from starspec.supervise.child import ChildSpec

LOOPBACK = "127.0.0.1"  # the links inside one machine
HUB, GATEWAY = "hub", "gateway"
LAST_WORDS_S = 1.0  # of a star's drain, for the gateway to tell those whose answers did not end in time
GATEWAY_STAGE, TARGET_STAGE, HUB_STAGE = range(3)  # of stopping: whoever is asked for work stops first


@dataclass(frozen=True, slots=True, kw_only=True)
class StarConfig:
    """One hub, several targets, one gateway."""

    model: ModelConfig  # of the targets
    num_targets: int
    target: TargetConfig  # limits of each target
    speculative: SpeculativeConfig | None  # None: no hub, targets decode plainly
    hub: HubConfig = field(default_factory=HubConfig)  # its policies; addresses and limits are the star's
    kv_budget_bytes: int | None = None  # as ModelConfig.kv_budget_bytes, of the draft
    draft_device: str  # as ModelConfig.device
    draft_num_threads: int | None = None  # as ModelConfig.num_threads
    num_draft_rows: int  # sessions that the draft can grow at once
    host: str  # of the gateway
    port: int
    gateway_arguments: tuple[str, ...] = ()  # further options of `starspec gateway`
    drain_s: float  # time for requests in flight when all stops
    log_level: str
    trace_folder: Path | None = None  # where each process writes NAME.json

    def __post_init__(self) -> None:
        if self.num_targets < 1:
            raise ConfigError(f"a star needs at least one target, got {self.num_targets}")
        if self.speculative is not None and self.speculative.remote.endpoint is not None:
            raise ConfigError("remote.endpoint names a hub elsewhere, but `starspec up` starts its own: leave it out")
        if self.speculative is not None and self.speculative.remote.keys is not None:
            raise ConfigError("remote.keys are of a hub elsewhere, but `starspec up` starts its own: leave them out")
        if self.speculative is not None and self.speculative.model is None and self.speculative.traits.needs_model:
            raise ConfigError(
                "a star that is told how to draft needs a draft: give --draft MODEL, or --spec-method ngram"
            )
        if self.speculative is None and (self.hub != HubConfig() or self.kv_budget_bytes is not None):
            raise ConfigError("options of the draft server need one: give --draft MODEL, or --spec-method ngram")
        names = [target_name(number) for number in range(self.num_targets)]
        for name in (*self.hub.weights, *self.hub.slo_round_ms, *self.hub.rate_limits):
            if name not in names:
                raise ConfigError(f"there is no target '{name}' in this star{nearest(name, names)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StarPorts:
    """Where the processes meet."""

    hub: int
    targets: tuple[int, ...]
    gateway: int

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
    environment = child_environment(environ, num_cores, num_busy=star.num_targets)
    hub = [] if star.speculative is None else [_hub(star, star.speculative, ports, environment)]
    targets = [_target(star, ports, number, environment) for number in range(star.num_targets)]
    return [*hub, *targets, _gateway(star, ports, environment)]


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
    arguments = [
        *("--speculative-config", _json(speculative), "--target", star.model.model),
        *("--host", LOOPBACK, "--port", str(ports.hub)),
        *("--dtype", star.model.dtype, "--device", star.draft_device),
        *("--max-num-seqs", str(star.num_draft_rows)),
        *("--max-tags", str(max(star.hub.max_tags, star.num_draft_rows))),  # a row for each is of no use otherwise
        *("--max-targets", str(max(star.hub.max_targets, star.num_targets))),
        *("--max-draft-tokens", str(MAX_DRAFT_TOKENS)),  # a request may ask for more than the star's own choice
        *_if_given("--max-model-len", speculative.max_model_len or star.model.max_model_len),
        *_if_given("--num-threads", star.draft_num_threads),
        *_if_given("--kv-budget", star.kv_budget_bytes),
        *_policies(star.hub),
    ]
    # a hub only ever makes targets faster: without it they go on
    return _spec(star, HUB, "draft", arguments, environment, stop_stage=HUB_STAGE, is_essential=False)


def _policies(hub: HubConfig) -> list[str]:
    by_name = {"--weights": hub.weights, "--slo-round-ms": hub.slo_round_ms, "--rate-limit": hub.rate_limits}
    return [
        *("--run-ahead", hub.run_ahead, "--share-prefixes", hub.share_prefixes),
        *("--max-batch", str(hub.max_batch)),
        *("--scheduling", hub.scheduling, "--admission", str(hub.admission)),
        *(word for flag, numbers in by_name.items() if numbers for word in (flag, _numbers(numbers))),
    ]


def _target(star: StarConfig, ports: StarPorts, number: int, environment: dict[str, str]) -> ChildSpec:
    name, batching = target_name(number), star.target.batching
    arguments = [
        *("--target", star.model.model, "--name", name),
        *("--host", LOOPBACK, "--port", str(ports.targets[number])),
        *("--dtype", star.model.dtype, "--device", star.model.device, "--numerics", star.model.numerics),
        *("--max-num-seqs", str(star.target.max_num_seqs), "--batching", batching.method),
        *(("--max-passed-over", str(batching.max_passed_over or 0)) if batching.method == "exspec" else ()),
        *_if_given("--window", batching.window),
        *("--max-num-queued-reqs", str(star.target.max_num_queued_reqs)),
        *("--prefill-chunk", str(star.target.prefill_chunk)),
        *("--shutdown-timeout", str(star.drain_s)),
        *_if_given("--max-model-len", star.model.max_model_len),
        *_if_given("--num-threads", star.model.num_threads),
    ]
    if star.speculative is not None:
        arguments += ["--speculative-config", _json(_of_spoke(star.speculative)), "--hub", ports.hub_endpoint]
    return _spec(star, name, "target", arguments, environment, stop_stage=TARGET_STAGE)


def _gateway(star: StarConfig, ports: StarPorts, environment: dict[str, str]) -> ChildSpec:
    arguments = [
        *("--target", star.model.model),
        *("--host", star.host, "--port", str(ports.gateway)),
        *("--shutdown-timeout", str(max(0.0, star.drain_s - LAST_WORDS_S))),
        *(word for endpoint in ports.target_endpoints for word in ("--endpoint", endpoint)),
        *(() if star.speculative is None else ("--hub", ports.hub_endpoint)),
        *star.gateway_arguments,
    ]
    return _spec(star, GATEWAY, "gateway", arguments, environment, stop_stage=GATEWAY_STAGE)


def _spec(
    star: StarConfig,
    name: str,
    command: str,
    arguments: list[str],
    environment: dict[str, str],
    *,
    stop_stage: int,
    is_essential: bool = True,
) -> ChildSpec:
    trace: list[str] = []
    if star.trace_folder is not None and name != GATEWAY:
        trace = ["--trace", str(trace_part(star.trace_folder, name))]
    return ChildSpec(
        name=name,
        command=(sys.executable, "-m", "starspec", command, *arguments, "--log-level", star.log_level, *trace),
        environment=environment,
        stop_stage=stop_stage,
        is_essential=is_essential,
    )


def target_name(number: int) -> str:
    """As the hub, the metrics and the table know it."""
    return f"target-{number}"


def trace_part(folder: Path, name: str) -> Path:
    """Where the process of that name writes its part of the trace."""
    return folder / f"{name}.json"


def _json(speculative: SpeculativeConfig) -> str:
    values = msgspec.to_builtins(speculative)
    if speculative.num_steps is not None:
        del values["num_speculative_tokens"]  # the other word for the depth, which was not said
    return msgspec.json.encode(values).decode()


def _of_spoke(speculative: SpeculativeConfig) -> SpeculativeConfig:
    """What a target needs to know: how the hub drafts is the hub's business."""
    return replace(speculative, method="draft_model", model=None, quantization="none")


def _numbers(by_name: Mapping[str, float]) -> str:
    return ",".join(f"{name}={number!r}" for name, number in by_name.items())


def _if_given(flag: str, value: int | None) -> tuple[str, ...]:
    return () if value is None else (flag, str(value))
