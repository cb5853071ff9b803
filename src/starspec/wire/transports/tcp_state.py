"""What Linux knows of the TCP connection behind a descriptor, which belongs to ZeroMQ.

ZeroMQ may close a descriptor at any time, and it may then be another connection. So none is kept: each look makes a
copy, or takes whatever the descriptor leads to.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from typing import Final

RECEIVED: Final = struct.Struct("@128xQ")  # tcpi_bytes_received of Linux's tcp_info
WAITING: Final = struct.Struct("@i")  # bytes that the kernel still holds
RESET: Final = struct.pack("@ii", 1, 0)  # of SO_LINGER: to close is to reset


@contextlib.contextmanager
def copy_of(fd: int) -> Iterator[socket.socket]:
    """Another descriptor of the same connection. Raises: OSError if there is none."""
    copy = os.dup(fd)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        yield connection


def bytes_received(fd: int) -> int:
    """What has come over a connection so far; of a descriptor that leads elsewhere, anything. Raises: OSError."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd)  # told what it is, Python does not ask
    try:
        [came] = RECEIVED.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED.size))
    finally:
        connection.detach()
    return int(came)


def bytes_waiting(connection: socket.socket) -> int:
    """What has come, and its owner has not read yet. Raises: OSError."""
    [waiting] = WAITING.unpack(fcntl.ioctl(connection, termios.FIONREAD, bytes(WAITING.size)))
    return int(waiting)


def reset(connection: socket.socket) -> None:
    """End a connection, whoever owns it. Raises: OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # else a full peer is not told
    connection.shutdown(socket.SHUT_RDWR)
