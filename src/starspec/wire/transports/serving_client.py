"""A gateway's end of the serving link to one target, in an asyncio loop. The other end is `serving_server.py`.

A second connection to the same port carries nothing but ZeroMQ's heartbeats. The target's I/O thread answers them, so a
target that computes for long answers, and one that is suspended or out of reach does not. This connection may end
within a second or two: no request is lost with it.

A target may not fill the gateway's memory over either (`unread.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
import structlog
import zmq
import zmq.asyncio

from starspec.errors import PeerLost, PeerProtocolError
from starspec.ids import RequestId
from starspec.log_limit import LogLimit
from starspec.wire.codec import MAX_FRAME_BYTES, MAX_MESSAGES, Decoder, encode
from starspec.wire.keys import Keys, require_keys
from starspec.wire.messages import GatewayToTarget, HubStatus, TargetToGateway
from starspec.wire.messages.base import RequestName
from starspec.wire.serving_news import FromTarget, Unreadable
from starspec.wire.transports.sockets import (
    GIVEN_UP_S,
    GOODBYE_MS,
    HANDSHAKE_FAILED,
    REFUSED_KEY_RETRY_S,
    connect,
    host_of,
    set_limits,
)
from starspec.wire.transports.unread import BEGUN, Unread
from starspec.wire.transports.unread_guard import EVENT, LOOK_S

RECONNECT_MS: Final = (50, 500)  # first and longest pause
# A target that ends resets its connection. A silent target may be suspended, or its machine may be very busy. Its
# requests are lost with the connection, so it gets as much time as it gives gateways (`lease_s`).
SILENCE_S: Final = 10.0
PROBE_INTERVAL_MS: Final = 300
PROBE_SILENCE_MS: Final = 1000  # with the interval, a target that stops answering is known within 1.3 s
READ_BURST: Final = 256  # multiparts read and decoded at once; a target of this version sends one frame in each
READ_BYTES: Final = 128 * 1024  # behind which no further one is: decoding a frame of the longest takes some 10 ms

log = structlog.get_logger()


class _AboutRequest(msgspec.Struct):
    """The part of an answer that says whose it is."""

    request_id: RequestName


class ServingClient:
    """A gateway's end of the link to one target. It connects and reconnects by itself while `receive` waits.

    Args:
        endpoint: the target's serving port, tcp://host:port.
        keys: of role "gateway".
        is_insecure: allow a host that is not loopback without keys.
        clock: seconds, monotonic.
    Raises: ConfigError if the endpoint is malformed or keys are missing.
    """

    def __init__(
        self,
        endpoint: str,
        keys: Keys | None = None,
        is_insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_keys(host_of(endpoint, "a target"), keys, is_insecure, "the gateway would connect to the target at")
        self._why_refused = (
            "a target ended the handshake: it stops, or it wants keys"
            if keys is None
            else "a target refuses this gateway's key, or has none: keys must be given on both sides"
        )
        self._keys = keys
        self._target_key = b"" if keys is None else keys.public_key_of("target")
        self._context = zmq.asyncio.Context()
        self._socket = set_limits(self._context.socket(zmq.DEALER), MAX_FRAME_BYTES)
        self._socket.heartbeat_ivl = 0  # else a target that is suspended for a while would lose its requests
        self._socket.immediate = (
            0  # else libzmq drops messages that arrived before the connection ended; see `_reconnect`
        )
        self._probe = set_limits(self._context.socket(zmq.DEALER), MAX_FRAME_BYTES)
        self._probe.heartbeat_ivl, self._probe.heartbeat_timeout = PROBE_INTERVAL_MS, PROBE_SILENCE_MS
        for socket in (self._socket, self._probe):
            socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT_MS
            if keys is not None:
                keys.secure_client(socket, self._target_key)
        port, is_encrypted = int(endpoint.rpartition(":")[2]), keys is not None
        self._renew_s = dict.fromkeys((self._socket, self._probe), math.inf)  # when their connections are made anew
        self._unread = Unread(port, is_encrypted=is_encrypted, is_client=True)
        self._probe_unread = Unread(port, is_encrypted=is_encrypted, is_client=True)
        self._looking: asyncio.TimerHandle | None = None
        events = BEGUN | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(events | HANDSHAKE_FAILED)
        self._probe_monitor = self._probe.get_monitor_socket(events)
        self._poller = zmq.asyncio.Poller()
        for socket in (self._socket, self._monitor, self._probe_monitor):
            self._poller.register(socket, zmq.POLLIN)
        self._decoder: Decoder[TargetToGateway | HubStatus] = Decoder(TargetToGateway | HubStatus)
        self._arrived: deque[FromTarget] = deque()
        self._log_limit = LogLimit(clock)
        self._is_broken = False  # the target does not read, so the connection is dropped
        self._is_lost = False  # the connection broke, and `receive` has not raised PeerLost yet
        self._is_refused = False  # the target refuses the key, which is logged
        self._is_closed = False
        self.endpoint = endpoint
        self.is_connected = False
        self.is_answering = False  # not suspended or out of reach, as far as the last second shows
        self._answered_s = -math.inf  # when it did so last, or was not connected
        self._clock = clock
        self.num_frames_rejected = 0
        connect(self._socket, endpoint)
        connect(self._probe, endpoint)

    def send(self, message: GatewayToTarget) -> None:
        """Send a message without waiting. It is dropped while not connected.

        A target that reads so slowly that the queue is full counts as lost: `receive` raises PeerLost.
        """
        if not self.is_connected:
            return
        sent = self._socket.send_multipart([encode(message)], flags=zmq.DONTWAIT)
        assert isinstance(sent, asyncio.Future)
        if sent.exception() is not None:
            self._break()

    async def receive(self) -> FromTarget:
        """Wait for the next message.

        Raises: PeerLost once each time the connection breaks, after the messages that arrived before.
        """
        while True:
            if self._arrived:
                return self._arrived.popleft()
            self._notice()  # before reading: when the end is noticed, all messages from before it have arrived
            if num_bytes := self._read():
                if not self._arrived or num_bytes > READ_BYTES:
                    await asyncio.sleep(0)  # a flood must not keep other tasks waiting
                continue
            if self._is_lost:
                self._is_lost = False
                if not self.is_connected:
                    self._reconnect()
                raise PeerLost(f"the connection to the target at {self.endpoint} broke")
            await self._poller.poll()

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self.is_connected = self.is_answering = False
            if self._looking is not None:
                self._looking.cancel()
            for socket, monitor in ((self._socket, self._monitor), (self._probe, self._probe_monitor)):
                socket.disable_monitor()
                monitor.close(linger=0)
            self._probe.close(linger=0)
            self._socket.close(linger=GOODBYE_MS)
            self._context.term()

    def _reconnect(self) -> None:
        """Start a new connection with an empty queue, so that a new target process gets no old messages.

        A target that restarts before its end is noticed may still get messages sent meanwhile. The caller that gets
        PeerLost from `receive` therefore aborts its requests.
        """
        self._connect_anew(self._socket)

    def _connect_anew(self, socket: zmq.asyncio.Socket) -> None:
        self._renew_s[socket] = math.inf
        with contextlib.suppress(zmq.ZMQError):  # it has none after a refusal
            socket.disconnect(self.endpoint)
        connect(socket, self.endpoint)

    def _take_newer_key(self) -> None:
        """If the target has another key by now, connect with it."""
        key = None if self._keys is None else self._keys.newer_key_of("target", self._target_key)
        if key is None:
            return
        self._target_key = key
        for socket in (self._socket, self._probe):
            socket.curve_serverkey = key
            self._connect_anew(socket)

    def _try_again(self) -> None:
        if not self._is_closed and not self.is_connected:
            self._reconnect()

    def _read(self) -> int:
        """Decode what has arrived, up to a limit. Returns: how many bytes; 0 = nothing has."""
        num_bytes = 0
        for multipart in _waiting(self._socket, READ_BURST):
            self._unread.hear(multipart[0], multipart[1:])
            frames = [frame.bytes for frame in multipart]
            num_bytes += 1 + sum(map(len, frames))
            try:
                self._arrived += self._decoder.decode_all(frames)
            except PeerProtocolError as error:
                self.num_frames_rejected += 1
                self._arrived += [Unreadable(each, str(error)) for each in _requests_in(frames[:MAX_MESSAGES])]
                event = "a target sends what this gateway cannot read"
                self._log_limit.log(log.warning, event, endpoint=self.endpoint, why=str(error))
            if num_bytes > READ_BYTES:
                break
        if not num_bytes:
            self._unread.note_empty()
        return num_bytes

    def _notice(self) -> None:
        """Process the connections' events."""
        if self._looking is None:
            self._look()
        for event in self._events(self._probe_monitor, self._probe_unread):
            self.is_answering = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._renew_s[self._probe] = math.inf if self.is_answering else self._clock() + GIVEN_UP_S
        self._is_lost |= self._is_broken
        self._is_broken = False
        for event in self._events(self._monitor, self._unread):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_connected, self._is_refused = True, False
                self.is_answering = True  # just now; the probe may take half a second more to connect again
            else:
                if event & HANDSHAKE_FAILED and not self._is_refused:
                    self._is_refused = True
                    self._log_limit.log(log.warning, self._why_refused, endpoint=self.endpoint)
                if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # ZeroMQ does not try again, and the key may be added
                    asyncio.get_running_loop().call_later(REFUSED_KEY_RETRY_S, self._try_again)
                elif event & HANDSHAKE_FAILED:
                    self._take_newer_key()
                self._is_lost |= self.is_connected
                self.is_connected = False
            self._renew_s[self._socket] = math.inf if self.is_connected else self._clock() + GIVEN_UP_S

    def _events(self, monitor: zmq.asyncio.Socket, unread: Unread) -> Iterator[int]:
        """The events of a connection, but for its beginning, which says nothing of the other end."""
        for name, _ in _waiting(monitor, math.inf):
            event, value = EVENT.unpack(name.buffer)
            unread.note(event, value)
            if not event & BEGUN:
                yield event

    def _look(self) -> None:
        """End connections on which too much has come that was never whole, or whose target is silent; until `close`."""
        num_cut, now = self._unread.look(), self._clock()
        self.num_frames_rejected += num_cut + self._probe_unread.look()  # answers to heartbeats alone add up in days
        if self.is_answering or not self.is_connected:
            self._answered_s = now
        if num_cut or now - self._answered_s > SILENCE_S:
            self._break()  # also frees what is not read
        for socket, at_s in self._renew_s.items():
            if now >= at_s:
                self._connect_anew(socket)
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _break(self) -> None:
        """The connection is useless. Effects: `receive` raises PeerLost."""
        self._is_broken, self.is_connected = True, False
        self._reconnect()  # its event wakes `receive`


def _waiting(socket: zmq.asyncio.Socket, most: float) -> Iterator[list[zmq.Frame]]:
    """The multiparts that have arrived. With DONTWAIT an asyncio socket's futures are done when they are returned."""
    num_read = 0
    while num_read < most:
        future = socket.recv_multipart(flags=zmq.DONTWAIT, copy=False)
        assert isinstance(future, asyncio.Future)
        if future.exception() is not None:
            break
        num_read += 1
        yield future.result()


def _requests_in(frames: Sequence[bytes]) -> Iterator[RequestId]:
    """The requests that frames which cannot be read are about, as far as the frames say it."""
    for frame in frames:
        with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
            yield msgspec.msgpack.decode(frame, type=_AboutRequest).request_id
