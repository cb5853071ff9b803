"""Who lets a socket's `Unread` look at its connections: the socket's owner now and then, or a thread."""

from __future__ import annotations

import contextlib
import math
import resource
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Final

import zmq

from starspec.wire.transports.sockets import Socket, SocketMonitor, port_of
from starspec.wire.transports.unread import BEGUN, Limits, Unread

LOOK_S: Final = 0.05  # between looks
MAX_CONNECTIONS: Final = 1024  # of a server's socket
MAX_OWN_CONNECTIONS: Final = 64  # of a port that belongs to one target
EVENT: Final = struct.Struct("=hi")  # of a monitor: what, and its value


class UnreadMonitor(SocketMonitor):
    """The events of one socket, from which its `Unread` learns of the connections.

    Args:
        events: those that the owner wants to know.
        peer_port: as `Unread`'s, of a socket that connects; None = it is bound to its port.
        most: connections of a bound socket.
        limits: of each of these.
        shut: as `Unread`'s.
    Raises: as SocketMonitor.
    """

    def __init__(
        self,
        socket: zmq.Socket[Any],
        events: int = 0,
        peer_port: int | None = None,
        most: int = MAX_CONNECTIONS,
        limits: Limits = Limits(),  # noqa: B008 (a tuple)
        shut: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(socket, events | BEGUN | zmq.EVENT_DISCONNECTED)
        self._wanted = events
        is_encrypted = socket.getsockopt(zmq.MECHANISM) == zmq.CURVE
        self.unread = (
            Unread(port_of(socket), is_encrypted=is_encrypted, most=_affordable(most), limits=limits, shut=shut)
            if peer_port is None
            else Unread(peer_port, is_encrypted=is_encrypted, is_client=True)
        )

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


class UnreadGuard(threading.Thread):
    """A thread that looks at one socket's connections, however long the socket's owner computes.

    It ends with the socket's context, or when it is told to.

    Args:
        events, peer_port, limits, shut: as UnreadMonitor.
        pass_on: gets the events that the owner wants, as a monitor sends them. The thread closes it.
    Raises: as SocketMonitor.
    """

    def __init__(
        self,
        socket: Socket,
        events: int = 0,
        peer_port: int | None = None,
        pass_on: Socket | None = None,
        limits: Limits = Limits(),  # noqa: B008 (a tuple)
        shut: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(name="starspec-unread", daemon=True)
        self._monitor = UnreadMonitor(socket, events, peer_port, limits=limits, shut=shut)
        self._pass_on = pass_on
        self._is_ending = False
        self._looked_s = -math.inf
        self.num_cut = 0  # connections that were ended
        self.start()

    @property
    def num_moves(self) -> int:
        """As Unread."""
        return self._monitor.unread.num_moves

    def hear(self, first: zmq.Frame, rest: Sequence[Sized] = (), owner: str = "") -> int:
        """As Unread."""
        return self._monitor.unread.hear(first, rest, owner)

    def note_empty(self) -> None:
        """As Unread."""
        self._monitor.unread.note_empty()

    def cut(self, fd: int) -> None:
        """As Unread."""
        self._monitor.unread.cut(fd)

    def is_barred(self, peer: bytes) -> bool:
        """As Unread."""
        return self._monitor.unread.is_barred(peer)

    def bar(self, peer: bytes, frame: zmq.Frame) -> bool:
        """As Unread."""
        return self._monitor.unread.bar(peer, frame)

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
        if (now := time.monotonic()) - self._looked_s >= LOOK_S:
            self._looked_s = now
            self.num_cut += self._monitor.unread.look()


def _affordable(most: int) -> int:
    """So many connections, or as many as take half of the descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // 2)
