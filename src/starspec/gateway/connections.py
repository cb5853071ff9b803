"""The gateway's connections to targets and hub: the config is checked at once, the event loop connects later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starspec.config import GatewayConfig
from starspec.errors import ConfigError
from starspec.gateway.hub_status import FetchHubStatus, HubStatusClient
from starspec.gateway.routed_target import ServingLink
from starspec.wire.keys import load_keys, require_keys
from starspec.wire.transports.serving_client import ServingClient
from starspec.wire.transports.sockets import host_of


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

    Raises: ConfigError for a missing target, a malformed address, bad keys, or an address that needs keys.
    """
    if not config.targets and config.hub is None:
        raise ConfigError(
            "a gateway needs at least one target: give its serving address, tcp://host:port; or a hub, for its metrics"
        )
    keys = load_keys(config.keys, "gateway")
    for endpoint in config.targets:
        host = host_of(endpoint, "a target")
        require_keys(host, keys, config.insecure, "the gateway would connect to the target at")
    if config.hub is not None:
        require_keys(host_of(config.hub, "the hub"), keys, config.insecure, "the gateway would connect to the hub at")

    def connect() -> Connections:
        links = [ServingClient(endpoint, keys, config.insecure) for endpoint in config.targets]
        if config.hub is None:
            return Connections(links)
        hub = HubStatusClient(config.hub, keys, config.insecure)
        return Connections(links, hub, hub.close)

    return connect
