"""Opens the stages of a target: the verifier for an engine whose model is elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from starspec.config import MAX_DRAFT_TOKENS, ModelConfig, TargetConfig
from starspec.errors import ConfigError, PeerLost
from starspec.ids import TargetId
from starspec.models.loading.load import load_info
from starspec.models.runner import ModelInfo
from starspec.stages.attach import attach, detach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.member import StageTimes
from starspec.stages.pipe import Pipe
from starspec.tracing import Tracer
from starspec.wire.keys import load_keys
from starspec.wire.transports.stage_port import MAX_HIDDEN_BYTES
from starspec.wire.transports.waiting import Waiting
from starspec.wire.transports.zmq_pipe import ZmqPipe

LEASE_S: Final = 10.0  # a stage whose target is silent for longer is free for another one
ATTACH_S: Final = 10.0  # that stages have to answer, at least
POLL_S: Final = 0.25  # between looks at connections that are being made
SLOW_S: Final = 3.0  # after which the log says what is waited for
NUMBER_BYTES: Final = 4  # of a number in 32 bits
HALF_BYTES: Final = 2

log = structlog.get_logger()


class OpenedStages(NamedTuple):
    """A target in stages that is ready to verify."""

    verifier: RemoteVerifier
    numerics_report: str  # whether a token's bits depend on what it is batched with


def open_stages(
    config: TargetConfig,
    model: ModelConfig,
    waiting: Waiting,
    clock: Callable[[], float] = time.monotonic,
    *,
    trace: Tracer | None = None,
) -> OpenedStages:
    """Connect to the stages of a target, and check that together they are its model.

    Args:
        model: which model, and how its stages run it.
        waiting: what else ends a wait for stages; they are added to it.
        trace: as RemoteVerifier.
    Raises: ConfigError if a stage refuses, cannot be connected, or does not fit; PeerLost if one does not answer.
    """
    info, pipe_config = load_info(model), config.pipe
    max_tokens = check_size(info, model, config)
    keys = load_keys(config.keys, "target")
    link = ZmqPipe(pipe_config.stages, keys, config.insecure, pipe_config.silence_s, waiting, spares=pipe_config.spares)
    try:
        until_s = clock() + pipe_config.start_timeout_s
        _connect(link, pipe_config.start_timeout_s, clock)
        timeout_s = max(ATTACH_S, until_s - clock())  # they answer once their layers are loaded
        pipe = attach(
            link,
            pipe_config.stages,
            TargetId(config.name),
            lease_s=LEASE_S,
            timeout_s=timeout_s,
            clock=clock,
            hidden_dtype=pipe_config.hidden_dtype,
            spares=pipe_config.spares,
        )
        _check_model(link, pipe, info, model)
        warn_of_rows(pipe, config)
        warn_of_spares(link.missing_spares)
    except BaseException:
        link.close()
        raise
    report = "invariant at all stages" if pipe.is_invariant else "not invariant at all stages"
    if not pipe_config.is_exact:
        report = f"hidden states in {pipe_config.hidden_dtype} between stages: tokens are not those of the whole model"
        log.warning("answers are not lossless", why=report)
    # hidden states stay at the stages: a draft that needs them is refused at the handshake with its hub
    seen = replace(info, hidden_size=0)
    times = StageTimes(seen_within_s=pipe_config.silence_s, wait_s=pipe_config.wait_s)
    verifier = RemoteVerifier(
        link,
        pipe,
        seen,
        depth=pipe_config.depth,
        clock=clock,
        max_tokens=max_tokens,
        spares=pipe_config.spares,
        times=times,
        trace=trace,
    )
    return OpenedStages(verifier, report)


def _check_model(link: ZmqPipe, pipe: Pipe, info: ModelInfo, model: ModelConfig) -> None:
    try:
        check_model(pipe, info, model)
    except ConfigError:
        detach(link, len(pipe.stages), pipe.epoch)
        raise


def check_model(pipe: Pipe, info: ModelInfo, model: ModelConfig) -> None:
    """Raises: ConfigError if the stages are another model than the target's, or run it in another way."""
    first = pipe.stages[0]
    if info.fingerprint and first.fingerprint != info.fingerprint:
        raise ConfigError(f"the stages have another model than '{model.model}' here, or other weights")
    if first.num_layers != info.num_layers:
        raise ConfigError(f"the stages' model has {first.num_layers} layers, and '{model.model}' {info.num_layers}")
    if first.dtype and first.dtype != model.dtype:
        raise ConfigError(
            f"the stages compute in {first.dtype}, and the target is told {model.dtype}: give all the same --dtype"
        )
    needed = info.max_model_len + MAX_DRAFT_TOKENS
    for name, stage in zip(pipe.names, pipe.stages, strict=True):
        if stage.max_len < needed:
            raise ConfigError(
                f"stage {name} holds sequences of {stage.max_len - MAX_DRAFT_TOKENS} tokens, and the target may have "
                f"{info.max_model_len}: give all the same --max-model-len"
            )


def check_size(info: ModelInfo, model: ModelConfig, config: TargetConfig) -> int:
    """Check that a chunk, or a round without drafts, has no more hidden states than a stage takes at once.

    Returns: tokens whose hidden states a stage takes. Drafts of a round are cut to that (`engine/round.py`).
    Raises: ConfigError if it has more.
    """
    number_bytes = NUMBER_BYTES if model.dtype == "float32" else HALF_BYTES
    most = MAX_HIDDEN_BYTES // (number_bytes * max(1, info.hidden_size))
    for option, num_tokens in (("--prefill-chunk", config.prefill_chunk), ("--max-num-seqs", config.max_num_seqs)):
        if num_tokens > most:
            raise ConfigError(f"{option} must be at most {most} for stages of this model, got {num_tokens}")
    return most


def warn_of_rows(pipe: Pipe, config: TargetConfig) -> None:
    """Tell that the target has fewer rows than it was told to use, and which stage has no more."""
    if pipe.num_rows >= config.num_rows:
        return
    least = next(name for name, each in zip(pipe.names, pipe.stages, strict=True) if each.num_rows == pipe.num_rows)
    why = f"stage {least} has {pipe.num_rows}: start it with a higher --max-num-seqs for more"
    log.warning("fewer rows than the target may use", rows=pipe.num_rows, wanted=config.num_rows, why=why)


def warn_of_spares(missing: Sequence[str]) -> None:
    """Tell which spares are not there yet."""
    if missing:
        log.warning("spares are not there yet", missing=", ".join(missing))


def _connect(link: ZmqPipe, timeout_s: float, clock: Callable[[], float]) -> None:
    """Wait until all stages are connected. Raises: as ZmqPipe.receive; PeerLost if they are not in time."""
    started_s, is_told = clock(), False
    while link.missing:
        link.receive(POLL_S)
        waited_s, missing = clock() - started_s, ", ".join(link.missing)
        if missing and waited_s > timeout_s:
            raise PeerLost(f"stage {missing} cannot be reached within {timeout_s:g} s (--start-timeout): does it run?")
        if missing and waited_s > SLOW_S and not is_told:
            is_told = True
            log.info("waiting for stages", missing=missing)
