"""What is wrong with a gateway's settings, found without uvicorn and transformers, which take seconds to import."""

from __future__ import annotations

import errno
import socket
from typing import Final, NamedTuple

from starspec.config import GatewayConfig
from starspec.config.checks import check_name
from starspec.errors import ConfigError
from starspec.models.loading.locate import announced_name, folder_name
from starspec.wire.keys import Keys, load_keys, require_keys
from starspec.wire.own_address import check_not_own
from starspec.wire.transports.sockets import host_of

BACKLOG: Final = 1024  # connections that wait to be accepted


def keys_of(config: GatewayConfig) -> Keys | None:
    """The keys of a gateway.

    Raises: ConfigError for a missing target, a malformed address or the gateway's own, bad keys, or an address
        that needs keys.
    """
    if not config.targets and config.hub is None:
        raise ConfigError(
            "a gateway needs at least one target: give its serving address, tcp://host:port; or a hub, for its metrics"
        )
    keys = load_keys(config.keys, "gateway")
    for endpoint in config.targets:
        host = host_of(endpoint, "a target")
        check_not_own(endpoint, config.host, config.port, "--endpoint", "this gateway")
        require_keys(host, keys, config.insecure, "the gateway would connect to the target at")
    if config.hub is not None:
        require_keys(host_of(config.hub, "the hub"), keys, config.insecure, "the gateway would connect to the hub at")
        check_not_own(config.hub, config.host, config.port, "--hub", "this gateway")
    if keys is not None and config.targets:
        keys.public_key_of("target")
    if keys is not None and config.hub is not None:
        keys.public_key_of("hub")
    return keys


class NamedModel(NamedTuple):
    """A model of a gateway."""

    name: str | None  # in the API; None = its folder's
    model: str


def named(given: str) -> NamedModel:
    """Of `NAME=MODEL`, or of `MODEL`, which may have a `=` behind a `/` or a `:`."""
    name, equals, model = given.partition("=")
    return NamedModel(name, model) if equals and not {"/", ":"} & {*name} else NamedModel(None, given)


def check_names(config: GatewayConfig) -> None:
    """Check what the models of a gateway are called, before any of them is read.

    Raises: ConfigError that names --also if a name is none, or if two models have the same one.
    """
    models = [NamedModel(config.served_model_name, config.model), *map(named, config.also)]
    for each in models[1:]:
        if each.name is not None:
            check_name(each.name, "--also: the name")
    for what, names in (
        ("names in the API", [each.name or folder_name(each.model) for each in models]),
        ("names that targets announce", [announced_name(each.model) for each in models]),
    ):
        if len({*names}) < len(names):
            raise ConfigError(f"--also: the models need different {what}, and have {', '.join(names)}")


def models_of(config: GatewayConfig) -> list[str]:
    """Folders, ids or files of all models of a gateway."""
    return [config.model, *(named(each).model for each in config.also)]


def open_port(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Args:
        port: 0 = any free one.
    Raises: ConfigError that says what to do if the port is taken or the interface does not exist.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(_why_not_listening(error, host, port)) from error
    listening.setblocking(False)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by connections: chunks go out at once
    return listening


def _why_not_listening(error: OSError, host: str, port: int) -> str:
    what = f"the gateway cannot listen on {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{what}: the port is in use; stop the process that listens there or choose another"
    if error.errno == errno.EACCES:
        return f"{what}: choose a port above 1023"
    return f"{what}: {error.strerror}"
