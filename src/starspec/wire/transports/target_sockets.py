"""The sockets of a client: of a target's connection to a hub, or of one to a stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import zmq

from starspec.wire.codec import MAX_ANSWER_BYTES, MAX_MESSAGES
from starspec.wire.keys import Keys
from starspec.wire.transports.sockets import (
    HANDSHAKE_FAILED,
    HANDSHAKE_MS,
    LOST,
    Context,
    Socket,
    connect,
    events_of,
    make_socket,
)
from starspec.wire.transports.unread_guard import UnreadGuard
from starspec.wire.transports.unsent import MAX_LARGE_BYTES, Unsent

_pairs = itertools.count()


class SocketFactory:
    """Opens sockets to one hub and owns their ZeroMQ context.

    Raises: ConfigError if there are keys but not the hub's public one.
    """

    def __init__(self, keys: Keys | None) -> None:
        self._keys = keys
        self._hub_key = b"" if keys is None else keys.public_key_of("hub")
        self._context: Context = zmq.Context()

    def has_new_key(self) -> bool:
        """Whether the hub has another key by now. Effects: later connections use it."""
        key = None if self._keys is None else self._keys.newer_key_of("hub", self._hub_key)
        self._hub_key = self._hub_key if key is None else key
        return key is not None

    def connect_public(self, endpoint: str) -> TargetSocket:
        """Connect to the public port. The socket mostly reconnects by itself; `events` tells what has failed."""
        socket = self._socket()
        socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 250
        return TargetSocket.connecting(socket, endpoint, HANDSHAKE_FAILED | zmq.EVENT_DISCONNECTED)

    def connect_own(self, endpoint: str, identity: bytes) -> TargetSocket:
        """Connect to the target's own port. `events` tells when the connection breaks; it does not reconnect.

        A broken connection ends the link, so ZeroMQ must not reconnect. The setting for that (-1) makes libzmq 4.3.5
        discard messages that had arrived, and can hang its context. An interval longer than the socket's life has the
        same effect without these faults.
        """
        socket = self._socket()
        socket.routing_id = identity
        socket.reconnect_ivl = 3_600_000
        socket.immediate = False
        return TargetSocket.connecting(socket, endpoint, LOST)

    def close(self) -> None:
        """Free the context. Every socket must be closed before."""
        self._context.term()

    def _socket(self) -> Socket:
        socket = make_socket(self._context, zmq.DEALER, MAX_ANSWER_BYTES)
        if self._keys is not None:
            self._keys.secure_client(socket, self._hub_key)
        return socket


class TargetSocket:
    """One DEALER socket and its connection events, which a thread reads first: it ends endless multiparts.

    Args:
        events: what `events` tells.
        port: to which it will connect.
    """

    def __init__(self, socket: Socket, events: int, port: int) -> None:
        self._socket = socket
        self._unsent = Unsent(MAX_LARGE_BYTES)
        self._events, pass_on = _pair(socket.context)
        self._guard = UnreadGuard(socket, events, port, pass_on)
        self.sockets = (socket, self._events)
        self._poller = zmq.Poller()
        for each in self.sockets:
            self._poller.register(each, zmq.POLLIN)

    @classmethod
    def connecting(cls, socket: Socket, endpoint: str, events: int) -> TargetSocket:
        """Start to connect. Never waits. Raises: zmq.ZMQError if that cannot be; then the socket is closed."""
        started = cls(socket, events, int(endpoint.rpartition(":")[2]))
        try:
            connect(socket, endpoint)
        except zmq.ZMQError:
            started.close(0)  # an open socket would keep its context waiting for ever
            raise
        return started

    @property
    def has_cut(self) -> bool:
        """Whether a connection was ended because too much came that was never whole."""
        return self._guard.num_cut > 0

    @property
    def can_send(self) -> bool:
        """Whether the connection is made, and the peer reads."""
        return bool(self._socket.poll(0, zmq.POLLOUT))

    def events(self) -> Iterator[tuple[int, int]]:
        """(event, value) pairs since the last call; never waits."""
        return events_of(self._events)

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """Send without waiting. Large frames are not copied, so nobody may change them later.

        Returns: False if the connection is not made yet or the peer does not read.
        """
        try:
            self._unsent.send(self._socket, frames)
        except zmq.Again:
            return False
        return True

    def read(self) -> Iterator[list[bytes]]:
        """The multiparts that have arrived, each as it is asked for: close the socket to be rid of the rest.

        Of a multipart with more than MAX_MESSAGES frames come only so many and one more.
        """
        try:
            while True:
                yield self._read_one()
        except zmq.Again:
            self._guard.note_empty()

    def _read_one(self) -> list[bytes]:
        """Raises: zmq.Again if nothing has arrived."""
        first = self._socket.recv(zmq.NOBLOCK, copy=False)
        frames = [first.bytes]
        while self._socket.getsockopt(zmq.RCVMORE) and len(frames) <= MAX_MESSAGES:
            frames.append(self._socket.recv(zmq.NOBLOCK))
        self._guard.hear(first, frames[1:])
        return frames

    def wait(self, timeout_s: float) -> None:
        """Wait for a message or a connection event, at most `timeout_s`."""
        self._poller.poll(max(0, math.ceil(timeout_s * 1000)))

    def close(self, linger_ms: int) -> None:
        """Close the sockets. What was sent has `linger_ms` to leave."""
        self._guard.end()
        self._socket.disable_monitor()
        self._socket.close(linger_ms)
        self._events.close(0)


def _pair(context: Context) -> tuple[Socket, Socket]:
    """Two sockets of which each hears the other."""
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    name = f"inproc://starspec-pair-{next(_pairs)}"
    one.bind(name)
    other.linger = 0
    other.connect(name)
    return one, other


def why_handshake_failed(event: int, value: int, endpoint: str) -> str:
    """Explain a HANDSHAKE_FAILED event of a public socket."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return f"the hub at {endpoint} does not know this target's key (status {value}): copy target.public to the hub"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return f"{endpoint} does not speak as this target does: keys on one side only, or not a hub"
    return (
        f"the hub at {endpoint} broke off the handshake: does it hang, do very many connect from here, is the link so "
        f"slow that a handshake takes more than {HANDSHAKE_MS / 1000:g} s, or is hub.public here another hub's key?"
    )
