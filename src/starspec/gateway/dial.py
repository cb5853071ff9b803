"""Connections to targets and hub, checked when the gateway is configured and made when its event loop runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starspec.config import GatewayConfig
from starspec.errors import ConfigError
from starspec.gateway.hub_watch import AskHub
from starspec.gateway.router import TargetLink
from starspec.wire.ask import HubAsker
from starspec.wire.keys import load_keys, require_keys
from starspec.wire.serving_client import ServingClient
from starspec.wire.transports.sockets import host_of


@dataclass(frozen=True, slots=True)
class Connections:
    """What a gateway speaks with."""

    links: Sequence[TargetLink]  # the router closes them
    ask_hub: AskHub | None = None  # None leaves the hub out of /metrics
    close: Callable[[], None] = lambda: None  # frees what is left after the links


Dial = Callable[[], Connections]
"""Makes the connections. Called once, inside the event loop that will use them."""


def dial_of(config: GatewayConfig) -> Dial:
    """How to reach the configured targets and hub over ZeroMQ.

    Raises: ConfigError for a missing target, a malformed address, bad keys, or an address that needs keys.
    """
    if not config.targets and config.hub is None:
        raise ConfigError(
            "a gateway needs at least one target: give its serving address, tcp://host:port; or a hub, for its metrics"
        )
    keys = load_keys(config.keys, "gateway")
    for endpoint in config.targets:
        host = host_of(endpoint, "a target")
        require_keys(host, keys, config.insecure, "the gateway would speak to the target at")
    if config.hub is not None:
        require_keys(host_of(config.hub, "the hub"), keys, config.insecure, "the gateway would speak to the hub at")

    def dial() -> Connections:
        links = [ServingClient(endpoint, keys, config.insecure) for endpoint in config.targets]
        if config.hub is None:
            return Connections(links)
        asker = HubAsker(config.hub, keys, config.insecure)
        return Connections(links, asker, asker.close)

    return dial
