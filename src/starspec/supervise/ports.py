"""Ports that are known before their servers start, and that stay reserved while a server restarts."""

from __future__ import annotations

import socket
from types import TracebackType

from starspec.errors import ConfigError


class PortReservations:
    """Holds ports by binding them without listening.

    Linux lets a second socket with SO_REUSEADDR bind and listen on such a port (ZeroMQ and asyncio set it), while
    nothing else is given it. So all processes start at once, each told the others' ports, and no port is lost to
    somebody else while its server is away.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def reserve(self, host: str, port: int) -> int:
        """Reserve a port; 0 takes any free one.

        Returns: the port's number.
        Raises: ConfigError if the port is in use or the host is not one of this machine.
        """
        reservation = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reservation.bind((host, port))
        except OSError as error:
            reservation.close()
            raise ConfigError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}") from error
        self._sockets.append(reservation)
        return int(reservation.getsockname()[1])

    def __enter__(self) -> PortReservations:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reservation in self._sockets:
            reservation.close()
