"""The hub of a wire benchmark: as `starspec draft` runs it, with a note of what happened when, and without the
statistics that nobody asks for here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection

from starspec.bench.wire.clock import Interval
from starspec.bench.wire.hub_side import LoggedTransport, RequestLog
from starspec.cache.ragged import RaggedCache
from starspec.config import HubConfig, ModelConfig
from starspec.hub.build import LoadedDrafter, build_hub, terms_of
from starspec.hub.grow import CausalDrafter
from starspec.hub.handshake import admit
from starspec.hub.loop import HubLoop
from starspec.models.loading.load import load_runner
from starspec.models.runner import ForwardOutput, ModelInfo, ModelRunner, Segment
from starspec.stats import HubStats
from starspec.wire.messages import HubStatus
from starspec.wire.transports.zmq_hub import ZmqHub

IDLE_WAIT_S = 0.05


class TimedRunner:
    """A runner that notes when its forwards began and ended."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.forwards: list[Interval] = []

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def cache(self) -> RaggedCache:
        return self._runner.cache

    def forward(
        self,
        segments: Sequence[Segment],
        feature_layers: Sequence[int] = (),
        *,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ForwardOutput:
        started_s = time.monotonic()
        output = self._runner.forward(segments, feature_layers, is_obsolete=is_obsolete)
        self.forwards.append(Interval(started_s, time.monotonic()))
        return output


def run_hub(parent: Connection, model: ModelConfig) -> None:
    """Serve until the parent says anything; then tell it when there were requests, and when the drafter computed.

    Sends: the public port; at the end two lists of Interval, requests and forwards, each in order of their ends.
    """
    log = RequestLog()
    runner = TimedRunner(load_runner(model))
    config = HubConfig(port=0)
    loaded = LoadedDrafter(CausalDrafter(runner), None, model.num_rows, 0)
    transport = ZmqHub(
        config.host,
        config.port,
        partial(admit, terms_of(loaded, config)),
        lambda: HubStatus(model.model, HubStats()),
        trace=log,
    )
    try:
        loop = HubLoop(build_hub(loaded, config), LoggedTransport(transport, log))
        parent.send(transport.port)
        is_stopping = threading.Event()  # a look at it costs a turn nothing, one at a pipe costs it a system call
        threading.Thread(target=_watch, args=(parent, is_stopping), name="bench-stop", daemon=True).start()
        while not is_stopping.is_set():
            loop.turn(IDLE_WAIT_S)
        parent.send((log.requests, runner.forwards))
    finally:
        transport.close()


def _watch(parent: Connection, is_stopping: threading.Event) -> None:
    """Wait for the parent's word, or its end."""
    parent.poll(None)
    is_stopping.set()
