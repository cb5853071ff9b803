"""Stages behind real sockets in this process, and coordinators of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from toy_stages import ToyStage, toy_stages

from starspec.audit import AuditLog
from starspec.config import StageConfig
from starspec.ids import TargetId
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.member import USUAL_TIMES, StageTimes
from starspec.stages.server import StageServer
from starspec.wire.keys import load_keys
from starspec.wire.transports.stage_port import StagePort
from starspec.wire.transports.waiting import Waiting
from starspec.wire.transports.zmq_pipe import ZmqPipe

WAIT_S = 10.0


class Running(NamedTuple):
    """A stage on a thread of its own."""

    server: StageServer
    thread: threading.Thread

    @property
    def address(self) -> str:
        return self.server.address

    def end(self) -> None:
        self.server.stop()
        self.thread.join(WAIT_S)


@contextmanager
def serving(
    stages: Sequence[ToyStage], keys: Path | None = None, audit: AuditLog | None = None, **changes: object
) -> Iterator[list[Running]]:
    """Stages on free ports."""
    audit = audit or AuditLog.off()
    with ExitStack() as stack:
        running = []
        for each in stages:
            config = StageConfig(layers=str(each.layers), listen="tcp://127.0.0.1:0", keys=keys and str(keys))
            config, own = replace(config, **changes), load_keys(keys, "stage")
            port = StagePort(config.host, config.port, own, False, audit)
            server = StageServer(config, each, port, own, audit)
            running.append(Running(server, threading.Thread(target=server.run)))
            running[-1].thread.start()
            stack.callback(running[-1].end)
        yield running


@contextmanager
def linked(
    endpoints: Sequence[str],
    keys: Path | None = None,
    role: str = "target",
    spares: Sequence[str] = (),
    times: StageTimes = USUAL_TIMES,
) -> Iterator[ZmqPipe]:
    """Connections to stages, once all but those to spares are made."""
    link = ZmqPipe(endpoints, load_keys(keys, role), False, times.seen_within_s, Waiting(), spares=spares)
    limit_s = time.monotonic() + WAIT_S
    try:
        while link.missing:
            assert time.monotonic() < limit_s
            link.receive(0.05)
        yield link
    finally:
        link.close()


@contextmanager
def pipe_of(
    endpoints: Sequence[str],
    keys: Path | None = None,
    role: str = "target",
    name: str = "t",
    wait_s: float = WAIT_S,
    lease_s: float = 5.0,
    spares: Sequence[str] = (),
    times: StageTimes = USUAL_TIMES,
) -> Iterator[RemoteVerifier]:
    with linked(endpoints, keys, role, spares, times) as link:
        pipe = attach(
            link, endpoints, TargetId(name), lease_s=lease_s, timeout_s=wait_s, clock=time.monotonic, spares=spares
        )
        info = toy_stages(1)[0].info
        yield RemoteVerifier(link, pipe, info, depth=4, clock=time.monotonic, spares=spares, times=times)


def addresses(servers: Sequence[Running]) -> list[str]:
    return [each.address for each in servers]
