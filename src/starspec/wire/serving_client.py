"""A gateway's end of the link to one target, in an asyncio loop. The other end is `serving.py`."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from starspec.errors import PeerLost, PeerProtocolError
from starspec.wire.codec import MAX_FRAME_BYTES, Decoder, encode
from starspec.wire.keys import Keys, require_keys
from starspec.wire.messages import GatewayToTarget, TargetToGateway
from starspec.wire.transports.sockets import GOODBYE_MS, HANDSHAKE_FAILED, connect, host_of, set_limits

RECONNECT_MS: Final = (50, 500)  # first and longest pause
# A target that ends resets its connection. One that is silent may be stopped, or on a machine too busy to let anybody
# speak in time; its requests are lost with the connection, so it gets as long as it gives gateways (`lease_s`).
SILENCE_MS: Final = 10_000

log = structlog.get_logger()


class ServingClient:
    """A gateway's end of the link to one target. Connects, and connects again, by itself while `receive` waits.

    Args:
        endpoint: the target's serving port, tcp://host:port.
        keys: of role "gateway".
        is_insecure: allow a host that is not loopback without keys.
    Raises: ConfigError if the endpoint is malformed or keys are missing.
    """

    def __init__(self, endpoint: str, keys: Keys | None = None, is_insecure: bool = False) -> None:
        require_keys(host_of(endpoint, "a target"), keys, is_insecure, "the gateway would speak to the target at")
        target_key = b"" if keys is None else keys.public_key_of("target")
        self._context = zmq.asyncio.Context()
        self._socket = set_limits(self._context.socket(zmq.DEALER), MAX_FRAME_BYTES, SILENCE_MS)
        self._socket.immediate = 0  # else libzmq drops what had come of a connection that ends; see `_renew`
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = RECONNECT_MS
        if keys is not None:
            keys.secure_client(self._socket, target_key)
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED
        self._monitor = self._socket.get_monitor_socket(events)
        self._poller = zmq.asyncio.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._decoder: Decoder[TargetToGateway] = Decoder(TargetToGateway)
        self._arrived: deque[TargetToGateway] = deque()
        self._is_broken = False  # the target does not read: the connection is given up
        self._is_lost = False  # the connection broke, and nobody has been told
        self._is_refused = False  # said so already
        self._is_closed = False
        self.endpoint = endpoint
        self.is_connected = False
        self.num_frames_rejected = 0
        connect(self._socket, endpoint)

    def send(self, message: GatewayToTarget) -> None:
        """Hand a message over without waiting; dropped while not connected.

        A target that does not read for so long that the queue is full is as good as gone: `receive` raises PeerLost.
        """
        if not self.is_connected:
            return
        sent = self._socket.send_multipart([encode(message)], flags=zmq.DONTWAIT)
        assert isinstance(sent, asyncio.Future)
        if sent.exception() is not None:
            self._is_broken, self.is_connected = True, False
            self._renew()  # its event wakes `receive`

    async def receive(self) -> TargetToGateway:
        """The next message, whenever it comes.

        Raises: PeerLost once each time the connection breaks, after all that had come until then.
        """
        while True:
            self._notice()  # before reading: what a target said before it went has arrived when its end is noticed
            self._read()
            if self._arrived:
                return self._arrived.popleft()
            if self._is_lost:
                self._is_lost = False
                if not self.is_connected:
                    self._renew()
                raise PeerLost(f"the connection to the target at {self.endpoint} broke")
            await self._poller.poll()

    def close(self) -> None:
        """Free the sockets. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self.is_connected = False
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=GOODBYE_MS)
            self._context.term()

    def _renew(self) -> None:
        """Begin the connection anew, without what is queued: whoever is found next is to hear nothing of before.

        A target that is back before its end was noticed may hear what was sent meanwhile. Whoever is told of the end by
        `receive` takes back what it had asked for.
        """
        self._socket.disconnect(self.endpoint)
        connect(self._socket, self.endpoint)

    def _read(self) -> None:
        for frames in _waiting(self._socket):
            try:
                self._arrived += self._decoder.decode_all(frames)
            except PeerProtocolError:
                self.num_frames_rejected += 1

    def _notice(self) -> None:
        """Follow the connection."""
        self._is_lost |= self._is_broken
        self._is_broken = False
        for frames in _waiting(self._monitor):
            event = parse_monitor_message(frames)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_connected, self._is_refused = True, False
            else:
                if event & HANDSHAKE_FAILED and not self._is_refused:
                    self._is_refused = True
                    log.warning(
                        "a target refuses this gateway's key, or has none: keys must be given on both sides",
                        endpoint=self.endpoint,
                    )
                self._is_lost |= self.is_connected
                self.is_connected = False


def _waiting(socket: zmq.asyncio.Socket) -> list[list[bytes]]:
    """The multiparts that have arrived. With DONTWAIT an asyncio socket's futures are done when they are returned."""
    arrived: list[list[bytes]] = []
    while True:
        future = socket.recv_multipart(flags=zmq.DONTWAIT)
        assert isinstance(future, asyncio.Future)
        if future.exception() is not None:
            return arrived
        arrived.append(future.result())
