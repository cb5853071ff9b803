"""Builds a target server from its configs: model, drafts, engine, sockets."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import structlog

from starspec.audit import AuditLog
from starspec.config import ModelConfig, Policy, SpeculativeConfig, TargetConfig, read_calibration
from starspec.engine.checks import NO_HUB, check_hub, keys_of, why_unsuited
from starspec.engine.drafts import DraftsForSome, NoDrafts, own_drafts
from starspec.engine.engine import TargetEngine
from starspec.engine.predicted_drafts import with_predictions
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.engine.server import TargetServer
from starspec.errors import ConfigError
from starspec.fingerprint import vocab_fingerprint
from starspec.grammars.compile import Grammars
from starspec.ids import TargetId
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.runner import ModelInfo
from starspec.policy.length.make import make_policy
from starspec.stages.open import open_stages
from starspec.stats import TargetStats
from starspec.tracing import Tracer
from starspec.windows.open import open_runner
from starspec.windows.verifier import Verifier
from starspec.wire.keys import load_keys
from starspec.wire.messages import PROTOCOL_VERSION, Hello
from starspec.wire.transports.serving_server import ServingServer
from starspec.wire.transports.waiting import Waiting
from starspec.wire.transports.zmq_target import ZmqTarget

log = structlog.get_logger()


def build_server(
    config: TargetConfig, model: ModelConfig, speculative: SpeculativeConfig | None, trace: Tracer | None = None
) -> TargetServer:
    """Bind the serving port, load the model, and make a server from both.

    Raises: ConfigError if the port is taken, keys are missing or the speculative config does not fit a target;
        ModelError if the model cannot be served.
    """
    keys = keys_of(config)
    check_hub(speculative)
    calibration = read_calibration(config.relaxed_thresholds)
    audit = AuditLog(config.audit_log, config.name)
    serving, waiting = ServingServer(config.host, config.port, keys, config.insecure, audit), Waiting()
    waiting.add(lambda: serving.sockets)
    try:
        tokenizer = load_tokenizer(model.model)
        stats = TargetStats()
        verifier, numerics_report = _open(config, model, stats, waiting, trace)
        others = make_drafts(config, speculative, verifier.info, tokenizer, stats, waiting)
        drafts = with_predictions(others, speculative, config.max_num_seqs, stats)
        grammars = None
        if not config.pipe.stages:  # the last stage judges, and knows no grammar
            grammars = Grammars(tokenizer, verifier.info.vocab_size, verifier.info.eos_token_ids)
            grammars.prepare()
    except BaseException:
        serving.close()
        audit.close()
        raise
    log.info(
        "target loaded",
        model=verifier.info.name,
        rows=verifier.cache.num_rows,
        cache_mib=round(verifier.cache.num_bytes / 2**20),
        batching=config.batching.method,
        numerics=numerics_report,
    )
    if why := calibration.why_of_others(target=verifier.info.name):
        log.warning("thresholds of another target", why=why)
    policies = get_args(Policy) if speculative is None else [*speculative.request_policies]
    engine = TargetEngine(
        verifier,
        tokenizer,
        drafts,
        config,
        stats,
        trace=trace,
        thresholds=calibration.thresholds,
        policies=policies,
        grammars=grammars,
    )
    return TargetServer(config, engine, serving, audit)


def _open(
    config: TargetConfig,
    model: ModelConfig,
    stats: TargetStats,
    waiting: Waiting,
    trace: Tracer | None,
) -> tuple[Verifier, str]:
    """What verifies this target's windows, in this process or at its stages; and the report of its numerics."""
    if config.pipe.stages:
        return open_stages(config, model, waiting, trace=trace)
    verifier, _, report = open_runner(model, config.batching, stats.batch)
    return verifier, report


def make_drafts(
    config: TargetConfig,
    speculative: SpeculativeConfig | None,
    info: ModelInfo,
    tokenizer: Any,
    stats: TargetStats,
    waiting: Waiting,
) -> DraftsForSome:
    """The drafts of a target server: from a hub, by prompt lookup in this process, or none.

    Args:
        waiting: the target's; a message of the hub ends its waits.
    """
    if speculative is None:
        return NoDrafts()
    policy = make_policy(speculative, config.max_num_seqs)
    remote = speculative.remote
    if remote.endpoint is None:
        own = own_drafts(speculative.method, speculative, policy, stats)
        if own is None:
            raise ConfigError(NO_HUB)
        return own
    fingerprint = vocab_fingerprint(tokenizer)
    hello = Hello(
        PROTOCOL_VERSION, TargetId(config.name), info.vocab_size, fingerprint, info.num_layers, info.hidden_size
    )
    keys = load_keys(remote.keys, "target") if remote.keys else None
    calibration = read_calibration(config.relaxed_thresholds)
    transport = ZmqTarget(
        remote.endpoint,
        hello,
        keys,
        remote.insecure,
        why_unsuited=partial(why_unsuited, config, speculative, calibration),
    )
    waiting.add(lambda: transport.sockets)
    return RemoteDrafts(
        transport,
        policy,
        stats,
        fallback=own_drafts(remote.fallback, speculative, policy, stats),
        deadline_s=None if remote.deadline_ms is None else remote.deadline_ms / 1e3,
        method=speculative.rejection_sample_method,
    )
