"""One connection of a target to a hub, as far as sockets go."""

from __future__ import annotations

import math
from collections.abc import Sequence

import zmq

from starspec.wire.codec import MAX_FRAME_BYTES
from starspec.wire.keys import Keys
from starspec.wire.transports.sockets import HANDSHAKE_FAILED, LOST, Context, Socket, Watch, connect, make_socket


class SocketFactory:
    """Opens sockets to one hub. Owns their ZeroMQ context.

    Raises: ConfigError if there are keys but not the hub's public one.
    """

    def __init__(self, keys: Keys | None) -> None:
        self._keys = keys
        self._hub_key = b"" if keys is None else keys.public_key_of("hub")
        self._context: Context = zmq.Context()

    def connect_public(self, endpoint: str) -> TargetSocket:
        """To the public port: connects again by itself; `watch` tells of handshakes that fail."""
        socket = self._socket()
        socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 250
        return self._connect(socket, endpoint, HANDSHAKE_FAILED)

    def connect_own(self, endpoint: str, identity: bytes) -> TargetSocket:
        """To the target's own port: `watch` tells when it breaks, and then it stays broken.

        A broken connection ends the link, so ZeroMQ need not reconnect. Told never to (-1), libzmq 4.3.5 throws
        away what the hub had said before, and its context may hang at the end: so it is told to wait for longer than
        the socket will live.
        """
        socket = self._socket()
        socket.routing_id = identity
        socket.reconnect_ivl = 3_600_000
        socket.immediate = False
        return self._connect(socket, endpoint, LOST)

    def close(self) -> None:
        """Free the context; every socket must be closed before."""
        self._context.term()

    def _socket(self) -> Socket:
        socket = make_socket(self._context, zmq.DEALER, MAX_FRAME_BYTES)
        if self._keys is not None:
            self._keys.secure_client(socket, self._hub_key)
        return socket

    def _connect(self, socket: Socket, endpoint: str, events: int) -> TargetSocket:
        target_socket = TargetSocket(socket, Watch(socket, events))
        try:
            connect(socket, endpoint)
        except zmq.ZMQError:
            target_socket.close(0)  # an open socket would keep `close` waiting for ever
            raise
        return target_socket


class TargetSocket:
    """One DEALER socket and its connection events."""

    def __init__(self, socket: Socket, watch: Watch) -> None:
        self._socket = socket
        self.watch = watch
        self.sockets = (socket, watch.socket)
        self._poller = zmq.Poller()
        for each in self.sockets:
            self._poller.register(each, zmq.POLLIN)

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send without waiting. Returns: False if there is no connection yet or the peer does not read."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def read(self) -> list[list[bytes]]:
        """The multiparts that have arrived."""
        arrived = []
        try:
            while True:
                arrived.append(self._socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return arrived

    def wait(self, timeout_s: float) -> None:
        """Until something arrives or happens, at most `timeout_s`."""
        self._poller.poll(max(0, math.ceil(timeout_s * 1000)))

    def close(self, linger_ms: int) -> None:
        """Free the sockets; what was sent has `linger_ms` to leave."""
        self._socket.linger = linger_ms
        self.watch.close()


def why_handshake_failed(event: int, value: int, endpoint: str) -> str:
    """The sentence for a HANDSHAKE_FAILED event of a public socket."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return f"the hub at {endpoint} does not know this target's key (status {value}): copy target.public to the hub"
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return f"who listens at {endpoint} does not speak as this target does: keys on one side only, or no hub at all"
    return f"the hub at {endpoint} broke off the handshake: does it hang, or is hub.public here not its own?"
