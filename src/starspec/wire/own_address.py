"""Whether an address that a process is told to connect to is its own."""

from __future__ import annotations

from typing import Final

from starspec.config.network import LOOPBACK
from starspec.errors import ConfigError
from starspec.wire.keys import is_loopback
from starspec.wire.transports.sockets import host_of

EVERY_INTERFACE: Final = ("0.0.0.0", "::")  # noqa: S104 (recognised, not bound)


def check_not_own(endpoint: str, host: str, port: int, flag: str, who: str) -> None:
    """Check that an endpoint is not where the process that would connect to it listens. Names are not resolved.

    Args:
        host, port: where the process listens; port 0 = any free one.
        flag: the option that gives the endpoint, for the sentence.
        who: the process, for the sentence, such as "this target".
    Raises: ConfigError; also as `host_of`.
    """
    there, own = (each.strip("[]").replace("localhost", LOOPBACK) for each in (host_of(endpoint, who), host))
    is_here = there == own or (own in EVERY_INTERFACE and is_loopback(there))
    if is_here and port == int(endpoint.rpartition(":")[2]):
        raise ConfigError(f"{flag} {endpoint} is {who} itself, which listens there: give the address of another")
