"""How much one connection may make its reader hold.

ZeroMQ gathers a multipart before it hands it over, however many frames it has, and it has no setting for that. So this
module asks the kernel what came over a connection, and ends a connection when too much came since its last message.

A file descriptor of ZeroMQ's may be closed at any time, and may then be another connection. So none is kept: each look
makes a copy, and counts only what leads to the expected port.
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
from typing import Any, Final

import zmq

from starspec.wire.transports.sockets import Socket, SocketMonitor, port_of

MAX_UNREAD_BYTES: Final = 80 * 2**20  # RECEIVE_HIGH_WATER multiparts of an honest peer, and a part of one
LOOK_S: Final = 0.05  # between looks
RECEIVED: Final = struct.Struct("@128xQ")  # tcpi_bytes_received of Linux's tcp_info
WAITING: Final = struct.Struct("@i")  # bytes that the kernel still holds
RESET: Final = struct.pack("@ii", 1, 0)  # of SO_LINGER: to close is to reset
EVENT: Final = struct.Struct("=hi")  # of a monitor: what, and its value
BEGUN: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED
FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


class Unread:
    """The connections of one socket, and what has come over each since its last message was read.

    Args:
        port: where the socket listens, or of the peer to which it connects.
    """

    def __init__(self, port: int, *, is_client: bool = False) -> None:
        self._port = port
        self._is_client = is_client
        self._read_bytes: dict[int, int] = {}  # by descriptor: what had come when its last message had been read
        self._heard: set[int] = set()  # since the last look

    def note(self, event: int, value: int) -> None:
        """The socket's monitor tells this: connections that begin are watched until they end."""
        if event & BEGUN:
            self._read_bytes[value] = 0
        elif event == zmq.EVENT_DISCONNECTED:
            self._read_bytes.pop(value, None)

    def hear(self, frame: zmq.Frame) -> int:
        """A whole message was read, of which this is a frame. Callable from any thread. Returns: the descriptor."""
        fd = int(frame.get(zmq.SRCFD))
        self._heard.add(fd)
        return fd

    def cut(self, fd: int) -> None:
        """End this connection, if it is one. Callable from any thread."""
        with contextlib.suppress(OSError), _copy_of(fd) as connection:
            if self._is_ours(connection):
                _reset(connection)

    def look(self) -> int:
        """End the connections with too much unread. Never waits. Returns: how many."""
        heard, self._heard = self._heard, set()
        num_cut = 0
        for fd, read_bytes in list(self._read_bytes.items()):
            try:
                with _copy_of(fd) as connection:
                    num_cut += self._is_cut(fd, connection, read_bytes, is_heard=fd in heard)
            except OSError:  # it is closed, or no connection any more
                self._read_bytes.pop(fd, None)
        return num_cut

    def _is_cut(self, fd: int, connection: socket.socket, read_bytes: int, *, is_heard: bool) -> bool:
        """Look at one connection. Returns: whether it was ended. Raises: OSError if it is none any more."""
        if not self._is_ours(connection):
            del self._read_bytes[fd]
            return False
        came = _bytes_taken(connection)
        if is_heard:
            self._read_bytes[fd] = came
        is_cut = not is_heard and came - read_bytes > MAX_UNREAD_BYTES
        if is_cut:
            _reset(connection)
        return is_cut

    def _is_ours(self, connection: socket.socket) -> bool:
        if connection.family not in FAMILIES:
            return False
        address = connection.getpeername() if self._is_client else connection.getsockname()
        return bool(address[1] == self._port)


class UnreadMonitor(SocketMonitor):
    """The events of one socket, from which its `Unread` learns of the connections.

    Args:
        events: those that the owner wants to know.
        peer_port: as `Unread`'s, of a socket that connects; None = it is bound to its port.
    Raises: as SocketMonitor.
    """

    def __init__(self, socket: zmq.Socket[Any], events: int = 0, peer_port: int | None = None) -> None:
        super().__init__(socket, events | BEGUN | zmq.EVENT_DISCONNECTED)
        self._wanted = events
        self.unread = Unread(port_of(socket)) if peer_port is None else Unread(peer_port, is_client=True)

    def events(self) -> Iterator[tuple[int, int]]:
        """As SocketMonitor, of those that the owner wants."""
        for event, value in super().events():
            self.unread.note(event, value)
            if event & self._wanted:
                yield event, value

    def look(self) -> int:
        """As Unread, for an owner that wants no events."""
        for _ in self.events():
            pass
        return self.unread.look()


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # else a full peer is not told
    connection.shutdown(socket.SHUT_RDWR)


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
    """A thread that looks at one socket's connections, however long the socket's owner computes.

    It ends with the socket's context, or when it is told to.

    Args:
        events, peer_port: as UnreadMonitor.
        pass_on: gets the events that the owner wants, as a monitor sends them. The thread closes it.
    Raises: as SocketMonitor.
    """

    def __init__(
        self, socket: Socket, events: int = 0, peer_port: int | None = None, pass_on: Socket | None = None
    ) -> None:
        super().__init__(name="starspec-unread", daemon=True)
        self._monitor = UnreadMonitor(socket, events, peer_port)
        self._pass_on = pass_on
        self._is_ending = False
        self.num_cut = 0  # connections that were ended
        self.start()

    def hear(self, frame: zmq.Frame) -> int:
        """As Unread."""
        return self._monitor.unread.hear(frame)

    def cut(self, fd: int) -> None:
        """As Unread."""
        self._monitor.unread.cut(fd)

    def end(self) -> None:
        """Look no more, from LOOK_S later on."""
        self._is_ending = True

    def run(self) -> None:
        with self._monitor.socket as monitored, self._pass_on or contextlib.nullcontext():
            while not self._is_ending:
                try:
                    monitored.poll(int(LOOK_S * 1000))
                    self._turn()
                except zmq.ZMQError:  # the context ends
                    return

    def _turn(self) -> None:
        for event, value in self._monitor.events():
            if self._pass_on is not None:
                with contextlib.suppress(zmq.Again):  # the owner does not read
                    self._pass_on.send_multipart([EVENT.pack(event, value), b""], zmq.NOBLOCK)
        self.num_cut += self._monitor.unread.look()
