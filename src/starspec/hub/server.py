"""The draft server: drafter, hub, loop and sockets in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import structlog

from starspec.audit import AuditLog
from starspec.cache.memory import memory_of
from starspec.config import HubConfig, ModelConfig, SpeculativeConfig
from starspec.hub.build import build_hub, load_drafter, terms_of
from starspec.hub.checks import keys_of, suited_to
from starspec.hub.handshake import admit
from starspec.hub.loop import HubLoop
from starspec.models.resolve import resolve_draft
from starspec.stats import HubStats
from starspec.tracing import Tracer
from starspec.wire.messages import HubStatus
from starspec.wire.transports.sockets import endpoint_at
from starspec.wire.transports.zmq_hub import ZmqHub

IDLE_WAIT_S = 0.1  # between looks at the stop flag while nothing arrives
STATUS_PERIOD_S = 0.1  # age that the published statistics may have

log = structlog.get_logger()


class DraftServer:
    """Loads the draft, listens, and drafts for all targets that connect.

    Args:
        speculative: method and limits of the drafter.
        model: the draft and how it runs; None for method 'ngram'.
        target: the model that an EAGLE head drafts for, and whose vocabulary a draft model must share.
    Raises: ConfigError if it cannot or must not listen there; ModelError if the model cannot be used.
    """

    def __init__(
        self,
        config: HubConfig,
        speculative: SpeculativeConfig,
        model: ModelConfig | None,
        target: str | None = None,
        trace: Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        draft = resolve_draft(speculative)
        config = suited_to(draft, config)  # first: an error shows at once, and loading a model takes a while
        keys = keys_of(config)
        self._audit = AuditLog(config.audit_log, "hub")
        loaded = load_drafter(draft, model, config.max_tags, target)
        self._loaded = loaded
        hub = build_hub(loaded, config, clock, trace)
        self._clock = clock
        self._is_stopping = threading.Event()
        self._status = HubStatus(loaded.drafter.name, HubStats())
        self._host = config.host
        self._transport = ZmqHub(
            config.host,
            config.port,
            partial(admit, terms_of(loaded, config)),
            lambda: self._status,
            data_ports=config.data_ports,
            keys=keys,
            is_insecure=config.insecure,
            audit=self._audit,
            trace=trace,
            max_len=loaded.drafter.max_len,
            clock=clock,
        )
        self._loop = HubLoop(hub, self._transport, clock)
        self._publish()
        log.info(
            "draft loaded",
            draft=loaded.drafter.name,
            rows=loaded.num_rows,
            cache_mib=round(loaded.num_cache_bytes / 2**20),
            address=self.address,
        )

    @property
    def address(self) -> str:
        """The public address, with the port that was really taken."""
        return endpoint_at(self._host, self._transport.port)

    @property
    def memory(self) -> str:
        """The memory that it keeps for sequences, as text for people; empty if it keeps none."""
        return memory_of(self._loaded.num_rows, self._loaded.num_cache_bytes) if self._loaded.num_cache_bytes else ""

    def run(self) -> None:
        """Serve until `stop`, then say Goodbye to all targets and free the sockets.

        Raises: OurBug if the transport's own thread has died.
        """
        try:
            while not self._is_stopping.is_set():
                self._loop.run_once(IDLE_WAIT_S)
                if self._clock() >= self._published_s + STATUS_PERIOD_S:
                    self._publish()
        finally:
            self._transport.close()
            self._audit.close()

    def _publish(self) -> None:
        """Leave a copy of the statistics for the transport's thread, which answers requests for them."""
        self._status = self._loop.status()
        self._published_s = self._clock()

    def stop(self) -> None:
        """End after the draft step in flight; targets go on alone. Callable from a signal handler or another thread."""
        self._is_stopping.set()
