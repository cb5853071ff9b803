"""The gateway as a process: one event loop that runs uvicorn and the connections to targets and hub.

The config of the connections is checked at once; the event loop connects later.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import uvicorn

from starspec.audit import AuditLog
from starspec.config import GatewayConfig
from starspec.gateway.app import build_app
from starspec.gateway.checks import keys_of
from starspec.gateway.connections import ConnectionTable
from starspec.gateway.dashboard.feed import StarFeed
from starspec.gateway.drain import Drain
from starspec.gateway.http_errors import HttpError
from starspec.gateway.http_protocol import MAX_HEAD_BYTES, Timeouts
from starspec.gateway.http_server import DrainingServer, affordable_connections, listen, redirect_uvicorn_log
from starspec.gateway.hub_status import FetchHubStatus, HubStatusClient, HubStatusPoller
from starspec.gateway.metrics import GatewayMetrics
from starspec.gateway.routed_target import ServingLink
from starspec.gateway.router import Router
from starspec.gateway.served_model import load_served_models
from starspec.gateway.services import Served, Services
from starspec.gateway.translate import Translator
from starspec.log_limit import LogLimit
from starspec.wire.transports.serving_client import ServingClient

CLOSE_S: Final = 1  # to send the last bytes on connections that are still open

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections of one gateway."""

    links: Sequence[ServingLink]  # the router closes them
    fetch_hub_status: FetchHubStatus | None = None  # None leaves the hub out of /metrics
    close: Callable[[], None] = lambda: None  # closes the connection to the hub


Connect = Callable[[], Connections]
"""Makes the connections. Called once, inside the event loop that will use them."""


def zmq_connections(config: GatewayConfig) -> Connect:
    """A function that connects to the configured targets and hub over ZeroMQ.

    Raises: ConfigError as `keys_of`.
    """
    keys = keys_of(config)

    def connect() -> Connections:
        links = [ServingClient(endpoint, keys, config.insecure) for endpoint in config.targets]
        if config.hub is None:
            return Connections(links)
        hub = HubStatusClient(config.hub, keys, config.insecure)
        return Connections(links, hub, hub.close)

    return connect


class GatewayServer:
    """Serves HTTP until it is stopped.

    Args:
        config: where to listen, what to reach, and which model's tokenizer to use.
        connect: makes the connections; None = over ZeroMQ to `config.targets` and `config.hub`.
        clock: seconds, monotonic.
    Raises: ConfigError if the port is taken, if an address is malformed, if the audit log cannot be written, or if an
        address needs keys and there are none. ModelError if the tokenizer cannot be loaded.
    """

    def __init__(
        self, config: GatewayConfig, connect: Connect | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._connect = connect if connect is not None else zmq_connections(config)
        self._audit = AuditLog(config.audit_log, "gateway")
        self._models = load_served_models(config)
        self._socket = listen(config.host, config.port, has_key=config.api_key is not None)
        self._drain = Drain(config.shutdown_timeout_s, clock)

    @property
    def address(self) -> str:
        """`http://host:port`, with the port that was really taken."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def memory(self) -> str:
        """A gateway keeps nothing for sequences."""
        return ""

    def run(self) -> None:
        """Serve until `stop`, then until the answers in flight are done or the time is over.

        Effects: takes what exists now out of the reach of Python's cycle collector, which would stop the event loop for
            a second to look through the tokenizer and the imported modules.
        """
        gc.collect()
        gc.freeze()
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """As `run`, inside a running loop."""
        connections = self._connect()
        try:
            server = self._make_uvicorn(connections)
            log.info("gateway listening", address=self.address)
            await server.serve(sockets=[self._socket])
        finally:
            connections.close()
            self._audit.close()

    def stop(self) -> None:
        """Refuse new requests and let the answers in flight end. A second call cancels them.

        Callable from another thread or a signal handler.
        """
        self._drain.ask()

    def close(self) -> None:
        """Free the port of a server that never ran."""
        self._socket.close()
        self._audit.close()

    def _make_uvicorn(self, connections: Connections) -> DrainingServer:
        has_models = len(self._models) > 1
        router = Router(connections.links, self._clock, self._audit, has_models=has_models)
        hub = HubStatusPoller(fetch, self._clock) if (fetch := connections.fetch_hub_status) is not None else None
        served = [
            Served(
                identity=each.identity,
                targets=router.of(each.announced) if has_models else router,
                codec=each.codec,
                translator=Translator(each.codec, each.defaults),
            )
            for each in self._models
        ]
        names = [each.identity.model for each in served]
        services = Services(
            config=self._config,
            served={each.identity.model: each for each in served},
            router=router,
            drain=self._drain,
            feed=StarFeed(router, hub, names, shows_text=self._config.show_text),
            clock=self._clock,
            hub=hub,
        )
        metrics = GatewayMetrics(services.snapshot, lambda: sum(each.num_broken_answers for each in router.targets))
        log_limit = LogLimit(self._clock)

        def note_refusal(client: str, error: HttpError) -> None:
            metrics.refuse(error)
            self._audit.note("connection_refused", client=client, status=error.status, why=error.message)

        table = ConnectionTable(
            affordable_connections(self._config.max_connections),
            self._config.max_connections_per_address,
            log_limit,
            self._clock,
            self._audit,
        )
        config = uvicorn.Config(
            build_app(services, metrics, self._audit),
            lifespan="on",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=math.ceil(self._config.idle_timeout_s) + 1,  # our own protocol closes idle connections
            timeout_graceful_shutdown=CLOSE_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        redirect_uvicorn_log(log_limit)  # after uvicorn.Config, which sets levels of its own
        timeouts = Timeouts(self._config.idle_timeout_s, self._config.receive_timeout_s)
        return DrainingServer(config, self._drain, table, timeouts, log_limit, note_refusal)
