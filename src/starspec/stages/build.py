"""Builds a stage's server from its configs: port, layers, sockets."""

from __future__ import annotations

from resource import RUSAGE_SELF, getrusage

import structlog

from starspec.audit import AuditLog
from starspec.config import ModelConfig, StageConfig
from starspec.models.loading.load import load_stage
from starspec.stages.server import StageServer
from starspec.tracing import Tracer
from starspec.wire.callers import keys_to_listen
from starspec.wire.transports.stage_port import StagePort

log = structlog.get_logger()


def build_stage(config: StageConfig, model: ModelConfig, trace: Tracer | None = None) -> StageServer:
    """Load the layers, listen, and make a server from both.

    A port that nobody reads while layers load is filled by the targets that ask there. If such a connection then breaks
    with a PING behind what it brought, libzmq 4.3.5 aborts the process as soon as the port is read.

    Raises: ConfigError if it cannot listen or the model has no such layers; ModelError if it cannot be cut.
    """
    keys = keys_to_listen("stage", config.keys, config.host, config.port, config.insecure)
    audit = AuditLog(config.audit_log, f"stage {config.layers}")
    try:
        runner = load_stage(model, config.layers)
        port = StagePort(config.host, config.port, keys, config.insecure, audit)
    except BaseException:
        audit.close()
        raise
    log.info(
        "stage loaded",
        model=runner.info.name,
        layers=str(runner.layers),
        weight_mib=round(runner.info.num_weight_bytes / 2**20),
        rows=runner.cache.num_rows,
        cache_mib=round(runner.cache.num_bytes / 2**20),
        peak_mib=round(getrusage(RUSAGE_SELF).ru_maxrss / 2**10),  # of the process so far
        numerics=runner.numerics_report,
    )
    return StageServer(config, runner, port, keys, audit, is_invariant=runner.is_invariant, trace=trace)
