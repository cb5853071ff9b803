"""How much one connection may make its server hold.

ZeroMQ gathers a multipart before it hands it over, however many frames it has, and it has no setting for that. So this
module asks the kernel what came over a connection, and ends a connection when too much came since its last message.

A file descriptor of ZeroMQ's may be closed at any time, and may then be another connection. So none is kept: each look
makes a copy, and counts only what leads to the server's own port.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
import threading
from collections.abc import Iterator
from typing import Final

import zmq

from starspec.wire.transports.sockets import Socket, SocketMonitor, port_of

MAX_UNREAD_BYTES: Final = 80 * 2**20  # RECEIVE_HIGH_WATER multiparts of an honest peer, and a part of one
LOOK_S: Final = 0.05  # between looks
RECEIVED: Final = struct.Struct("@128xQ")  # tcpi_bytes_received of Linux's tcp_info
WAITING: Final = struct.Struct("@i")  # bytes that the kernel still holds
RESET: Final = struct.pack("@ii", 1, 0)  # of SO_LINGER: to close is to reset
FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


class Unread:
    """The connections of one listening socket, and what has come over each since its last message was read.

    Args:
        socket: bound to its port.
    """

    def __init__(self, socket: Socket) -> None:
        self._port = port_of(socket)
        self._read_bytes: dict[int, int] = {}  # by descriptor: what had come when its last message had been read
        self._heard: set[int] = set()  # since the last look

    def add(self, fd: int) -> None:
        """A connection was accepted."""
        self._read_bytes[fd] = 0

    def hear(self, frame: zmq.Frame) -> None:
        """A whole message was read, of which this is a frame. Callable from any thread."""
        self._heard.add(frame.get(zmq.SRCFD))

    def look(self) -> int:
        """End the connections with too much unread. Never waits. Returns: how many."""
        heard, self._heard = self._heard, set()
        num_cut = 0
        for fd, read_bytes in list(self._read_bytes.items()):
            try:
                with _copy_of(fd) as connection:
                    num_cut += self._is_cut(fd, connection, read_bytes, is_heard=fd in heard)
            except OSError:  # it is closed, or no connection any more
                del self._read_bytes[fd]
        return num_cut

    def _is_cut(self, fd: int, connection: socket.socket, read_bytes: int, *, is_heard: bool) -> bool:
        """Look at one connection. Returns: whether it was ended. Raises: OSError if it is none any more."""
        if connection.family not in FAMILIES or connection.getsockname()[1] != self._port:
            del self._read_bytes[fd]
            return False
        came = _bytes_taken(connection)
        if is_heard:
            self._read_bytes[fd] = came
        is_cut = not is_heard and came - read_bytes > MAX_UNREAD_BYTES
        if is_cut:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # else a full peer is not told
            connection.shutdown(socket.SHUT_RDWR)
        return is_cut


@contextlib.contextmanager
def _copy_of(fd: int) -> Iterator[socket.socket]:
    """Another descriptor of the same connection. Raises: OSError if there is none."""
    copy = os.dup(fd)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        yield connection


def _bytes_taken(connection: socket.socket) -> int:
    """What ZeroMQ has taken from a connection so far. Raises: OSError."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED.size)
    [waiting] = WAITING.unpack(fcntl.ioctl(connection, termios.FIONREAD, bytes(WAITING.size)))
    [came] = RECEIVED.unpack(info)
    return int(came - waiting)


class UnreadGuard(threading.Thread):
    """A thread that looks at one listening socket's connections, however long the socket's owner computes.

    It ends with the socket's context.
    """

    def __init__(self, socket: Socket) -> None:
        super().__init__(name="starspec-unread", daemon=True)
        self._unread = Unread(socket)
        self._monitor = SocketMonitor(socket, zmq.EVENT_ACCEPTED)
        self.num_cut = 0  # connections that were ended
        self.start()

    def hear(self, frame: zmq.Frame) -> None:
        """As Unread."""
        self._unread.hear(frame)

    def run(self) -> None:
        with self._monitor.socket as events:
            while True:
                try:
                    events.poll(int(LOOK_S * 1000))
                    for event, value in self._monitor.events():
                        if event == zmq.EVENT_ACCEPTED:
                            self._unread.add(value)
                except zmq.ZMQError:  # the context ends
                    return
                self.num_cut += self._unread.look()
