"""Stages as processes of their own, behind real sockets and links of a lab. Only computing is modelled: they sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Final

from starspec.audit import AuditLog
from starspec.bench.shard.modelled_stage import VOCAB, ModelledStage
from starspec.config import StageConfig
from starspec.config.lab import LabLink, LinkShape
from starspec.errors import PeerLost
from starspec.harness.children import BenchProcess
from starspec.ids import TargetId
from starspec.lab import LabThread
from starspec.models.layers import LayerRange
from starspec.models.runner import ModelInfo
from starspec.policy.traversal import Pipeline
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.member import StageTimes
from starspec.stages.server import StageServer
from starspec.wire.transports.stage_port import StagePort
from starspec.wire.transports.waiting import Waiting
from starspec.wire.transports.zmq_pipe import ZmqPipe

START_S: Final = 60.0  # that stages have to connect
PATIENCE_S: Final = 20.0  # a stage that is silent for so long is gone: the machine may be busy
POLL_S: Final = 0.05


@contextmanager
def real_stages(pipeline: Pipeline, num_rows: int, max_len: int) -> Iterator[list[str]]:
    """Stages that take these times, behind links that do. Yields: their endpoints.

    Args:
        pipeline: the first stage is beside the coordinator. A lab puts one link before each of the others, which
            delays control messages, too. The way back is as long as the last hop.
    Raises: PeerLost if a stage does not start.
    """
    assert pipeline.return_s == (pipeline.hops_s[-1] if pipeline.hops_s else 0.0), "the last link leads back, too"
    with ExitStack() as stack:
        stages = [
            stack.enter_context(BenchProcess(run_stage, index, pipeline, num_rows, max_len))
            for index in range(len(pipeline.stages))
        ]
        for each in stages:
            stack.callback(each.send, "stop")
        first, *others = [each.receive() for each in stages]
        links = [
            LabLink(name=f"{index}", to=address, shape=LinkShape(delay_ms=hop_s * 1e3))
            for index, (address, hop_s) in enumerate(zip(others, pipeline.hops_s, strict=True))
        ]
        endpoints = [first]
        if links:
            lab = stack.enter_context(LabThread(*links))
            endpoints += [lab.endpoint(each.name) for each in links]
        yield endpoints


@contextmanager
def coordinator(endpoints: Sequence[str], max_len: int) -> Iterator[RemoteVerifier]:
    """A coordinator, in this process, of these stages. Raises: PeerLost if one cannot be reached."""
    link = ZmqPipe(endpoints, None, False, PATIENCE_S, Waiting())
    try:
        _connect(link)
        pipe = attach(link, endpoints, TargetId("bench"), lease_s=PATIENCE_S, timeout_s=START_S, clock=time.monotonic)
        info = ModelInfo("modelled", VOCAB, max_len, 1, 1, (), len(endpoints), 1)
        times = StageTimes(seen_within_s=PATIENCE_S)
        verifier = RemoteVerifier(link, pipe, info, depth=None, clock=time.monotonic, times=times)
        yield verifier
        verifier.close()
    finally:
        link.close()


def run_stage(parent: Connection, index: int, pipeline: Pipeline, num_rows: int, max_len: int) -> None:
    """As `serve`."""
    layers = LayerRange(index, index + 1, len(pipeline.stages))
    runner = ModelledStage(layers, pipeline.stages[index], time.sleep, num_rows, max_len)
    config = StageConfig(layers=str(layers), listen="tcp://127.0.0.1:0", silence_s=PATIENCE_S)
    port = StagePort(config.host, config.port, None, False, AuditLog.off())
    serve(StageServer(config, runner, port, None, AuditLog.off(), is_invariant=True), parent)


def serve(server: StageServer, parent: Connection) -> None:
    """Serve a stage until the parent says anything. Sends: the address."""
    parent.send(server.address)

    def stop() -> None:
        parent.poll(None)
        server.stop()

    threading.Thread(target=stop, name="bench-stop", daemon=True).start()
    server.run()


def _connect(link: ZmqPipe) -> None:
    limit_s = time.monotonic() + START_S
    while link.missing:
        if time.monotonic() > limit_s:
            raise PeerLost(f"stage {', '.join(link.missing)} cannot be reached")
        link.receive(POLL_S)
