"""Options that all servers have in common: where they listen, and with which keys."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Annotated

from starspec.config.option import LIMITS, NETWORK, NONE_GIVEN, PROCESS, Option
from starspec.errors import ConfigError
from starspec.quoting import quoted

LOOPBACK = "127.0.0.1"

Host = Annotated[str, Option("Address to listen on.", NETWORK)]
Port = Annotated[int, Option("Port to listen on; 0 = any free one.", NETWORK, least=0, most=65535)]
Keys = Annotated[
    str | None,
    Option(
        "Folder made by `starspec keygen`; needed for every address that is not loopback.",
        NETWORK,
        shown=NONE_GIVEN,
        form="path",
    ),
]
Insecure = Annotated[bool, Option("Allow addresses that are not loopback without keys.", NETWORK, ("--insecure",))]
AuditLogFile = Annotated[
    str | None,
    Option(
        "Append connects, requests and refusals to this file, as JSON lines without any text of requests.",
        NETWORK,
        ("--audit-log",),
        shown=NONE_GIVEN,
        form="path",
    ),
]
PrefillChunk = Annotated[int, Option("Prompt tokens of one forward.", LIMITS, least=1)]
ShutdownTimeout = Annotated[
    float,
    Option(
        "Seconds that requests in flight have to end after SIGINT or SIGTERM.",
        PROCESS,
        ("--shutdown-timeout",),
        least=0.0,
    ),
]


def check_host(host: str, where: str) -> None:
    """Check the form of a host. A name that can be one passes: whoever uses it finds out whether it exists.

    Args:
        where: what has this host, for the sentence.
    Raises: ConfigError if the host is written as an IP address and is not valid, or if no host can have this name.
    """
    try:
        if re.fullmatch(r"[0-9.]+", host):
            socket.inet_aton(host)  # it knows short forms, too, such as 127.1
        elif ":" in host:
            ipaddress.IPv6Address(host.strip("[]"))
        else:
            host.encode("idna")  # as sockets do
    except UnicodeError as error:
        raise ConfigError(f"{where}: {quoted(host)} is not the name of a host") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: '{host}' is not an IP address, such as 127.0.0.1 or ::1") from error


def lease(least_s: float) -> Option:
    """The option of a server's lease."""
    return Option("Seconds of silence after which a caller's work is freed.", LIMITS, ("--lease",), least=least_s)
