"""A target's end of the serving link: requests of gateways in, outputs out. Used by the engine's thread between steps.

A gateway that reconnects is a new peer. The requests of its old connection end with the lease, or as soon as an output
cannot be delivered. The other end is `serving_client.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog
import zmq

from starspec.audit import AuditLog
from starspec.errors import LinkError, PeerProtocolError
from starspec.ids import PeerId, RequestId
from starspec.log_limit import LogLimit
from starspec.policy.peer_limits import ASK_WORK, BAD_WORK, READ_FRAMES, READ_PER_S, READ_UNITS, Allowance, work_of
from starspec.wire.callers import named_key_of, owner_of
from starspec.wire.codec import MAX_FRAME_BYTES, Decoder, encode
from starspec.wire.keys import Keys
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Ask,
    GatewayToTarget,
    Refused,
    Rejected,
    TargetToGateway,
)
from starspec.wire.messages.base import RequestName
from starspec.wire.transports.server_socket import ServerSocket
from starspec.wire.transports.serving_inbox import ServingInbox
from starspec.wire.transports.sockets import Socket, receive_at_most
from starspec.wire.transports.unread import Limits

MAX_FRAMES: Final = 64  # of one multipart: a gateway sends one frame in each
GATEWAY_LIMITS: Final = Limits(whole=48 * 2**20)  # of what is not read yet: long prompts that come during a step
READ_COST, DRAIN_COST = 2.0, 0.5  # of READ_FRAMES: what a multipart takes at least, and one that is dropped unseen
DRAINED_PER_UNIT: Final = 8  # frames of one that floods: to read one and drop it takes half a microsecond
TURN_S, MAX_TURNS = 0.05, 8.0  # after a long step, READ_FRAMES are read for each so many seconds: floods end sooner
FLOODED_WAIT_S: Final = 0.01  # when more came than is read

log = structlog.get_logger()


class _AnySubmit(msgspec.Struct, tag_field="type", tag="submit"):
    """The part of a Submit that is needed to reject it."""

    request_id: RequestName


class ServingServer:
    """A target's end, for many gateways. It listens when the constructor returns. Used by one thread.

    Args:
        port: 0 = any free one; see the attribute `port`.
        keys: of role "target".
        is_insecure: allow a host that is not loopback without keys.
        audit: gets connects and refused keys, if given.
        clock: seconds, monotonic.
    Raises: ConfigError if it cannot or must not listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        keys: Keys | None = None,
        is_insecure: bool = False,
        audit: AuditLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._audit = audit or AuditLog.off()
        self._log_limit = LogLimit(clock)
        self._inbox = ServingInbox()
        self._reading = Allowance(READ_PER_S, READ_UNITS)
        self._decoder: Decoder[GatewayToTarget] = Decoder(GatewayToTarget)
        self._clock = clock
        self._read_s = clock()
        self._num_rejected = 0
        self.num_dropped = 0  # messages to gateways that are gone or do not read
        self._refused_version = PROTOCOL_VERSION  # the last one that was refused and logged
        self._server = ServerSocket(
            "the target",
            host,
            port,
            keys,
            is_insecure,
            self._audit,
            clock,
            max_frame_bytes=MAX_FRAME_BYTES,
            limits=GATEWAY_LIMITS,
        )
        self.port = self._server.port

    @property
    def num_frames_rejected(self) -> int:
        """Frames that broke the protocol, or were too many; and connections that ended for what was never whole."""
        return self._num_rejected + self._inbox.num_dropped + self._server.unread.num_cut

    @property
    def sockets(self) -> Sequence[Socket]:
        """What to wait for."""
        return [self._server.socket]

    def owner_of(self, peer: PeerId) -> str:
        """Whose gateway this is, for what owners share; empty if nothing came from it of late."""
        return self._inbox.owner_of(peer)

    def receive(self, timeout_s: float) -> list[tuple[PeerId, GatewayToTarget]]:
        """Return (gateway, message) pairs; those of one gateway in order of arrival.

        What is beyond a gateway's share of the work waits for the next calls, or is dropped and counted where too much
        waits. A malformed frame is dropped and counted; if it was a Submit, its gateway gets a Rejected. An Ask of
        another protocol version is answered with Refused. Of the Asks of one gateway, one counts.

        Args:
            timeout_s: longest wait for something to arrive; 0 = none.
        """
        if timeout_s > 0 and self._reading.has_units(self._clock()):
            self._server.socket.poll(int(timeout_s * 1000))
        elif timeout_s > 0:
            time.sleep(min(timeout_s, FLOODED_WAIT_S))
        now = self._clock()
        self._read(now)
        arrived: list[tuple[PeerId, GatewayToTarget]] = []
        asking: set[PeerId] = set()
        for peer, frame in self._inbox.take(now):
            message = self._decode(peer, frame, now) if self._may_talk(peer) else None
            if isinstance(message, Ask):
                self._inbox.charge(peer, ASK_WORK, now)
                if peer in asking or self._is_refused(peer, message):
                    message = None
                asking.add(peer)
            if message is not None:
                arrived.append((peer, message))
        return arrived

    def send(self, peer: PeerId, messages: Sequence[TargetToGateway]) -> bool:
        """Send messages without waiting.

        Returns: False if the gateway is gone, does not read or has a key that was removed, or if a message is too large
            for a frame.
        Effects: may end the connection of one that does not read.
        """
        if not self._may_talk(peer):
            self.num_dropped += len(messages)
            return False
        unsent, fd = self._inbox.unsent(peer)
        num_sent = 0
        try:
            for frame in [encode(message) for message in messages]:
                unsent.send(self._server.socket, [peer, frame])
                num_sent += 1
        except (zmq.ZMQError, LinkError) as error:
            if isinstance(error, zmq.Again):
                self._server.unread.cut(fd)  # it does not read, and what waits for it takes memory
            self.num_dropped += len(messages) - num_sent
            return False
        return True

    def close(self) -> None:
        """As ServerSocket."""
        self._server.close()

    def _read(self, now: float) -> None:
        """Let what has arrived wait, as far as there is room. ZeroMQ hands over one multipart of each peer in turn."""
        num_left = READ_FRAMES * min(MAX_TURNS, max(1.0, (now - self._read_s) / TURN_S))
        self._read_s = now
        while num_left > 0 and self._reading.has_units(now):
            try:
                sender, frames, num_beyond = receive_at_most(self._server.socket, MAX_FRAMES)
            except zmq.Again:
                self._server.unread.note_empty()
                return
            peer = PeerId(sender.bytes)
            if self._server.unread.is_barred(peer):
                self._num_rejected += len(frames) + num_beyond
                cost = (len(frames) + num_beyond) / DRAINED_PER_UNIT
                self._reading.take(cost, now)
                num_left -= max(DRAIN_COST, cost)
            else:
                self._reading.take(work_of(frames) + num_beyond / DRAINED_PER_UNIT, now)
                num_left -= max(READ_COST, len(frames) + num_beyond / DRAINED_PER_UNIT)
                self._put(peer, frames, num_beyond, now)

    def _put(self, peer: PeerId, frames: list[zmq.Frame], num_beyond: int, now: float) -> None:
        """Let one multipart wait, or end its connection."""
        if not self._inbox.knows(peer):
            self._greet(peer, frames[0])
        fd = self._server.unread.hear(frames[0], frames[1:], self._inbox.owner_of(peer))
        self._inbox.note_connection(peer, fd)
        if num_beyond:
            self._num_rejected += len(frames) + num_beyond
            self._end(peer, frames[0], "too many frames at once")
        elif not self._may_talk(peer):
            self._server.unread.bar(peer, frames[0])  # it comes again, and is refused at the door
        elif self._inbox.has_room(peer, work_of(frames)):
            self._inbox.put(peer, [frame.bytes for frame in frames])
        else:
            self._num_rejected += len(frames)
            if not self._inbox.may_exceed(peer, len(frames), now):
                self._end(peer, frames[0], "far more than may wait")

    def _end(self, peer: PeerId, frame: zmq.Frame, why: str) -> None:
        """End a connection that floods, take nothing more of it, and shut the door behind it."""
        if self._server.shut_out(peer, frame):
            self._log_limit.log(log.warning, f"a connection is ended: {why}", peer=peer.hex())

    def _greet(self, peer: PeerId, frame: zmq.Frame) -> None:
        """The first frame of a connection has come."""
        callers = self._server.callers
        key = named_key_of(frame, callers)
        self._inbox.add(peer, key, owner_of(frame, callers))
        if key.name:
            self._audit.note("gateway_connected", key=key.name, peer=peer.hex())

    def _may_talk(self, peer: PeerId) -> bool:
        """Whether the peer's key is still in the folder."""
        return self._server.callers is None or self._server.callers.is_allowed(self._inbox.key(peer))

    def _decode(self, peer: PeerId, frame: bytes, now: float) -> GatewayToTarget | None:
        try:
            return self._decoder.decode(frame)
        except PeerProtocolError as error:
            self._num_rejected += 1
            self._inbox.charge(peer, BAD_WORK + work_of([frame]), now)
            if (request_id := _request_in(frame)) is not None:
                self.send(peer, [Rejected(request_id, str(error))])
            return None

    def _is_refused(self, peer: PeerId, message: Ask) -> bool:
        if message.protocol_version == PROTOCOL_VERSION:
            return False
        refused = Refused.for_version(message.protocol_version, "this target", "the gateway")
        if self._refused_version != message.protocol_version:
            self._refused_version = message.protocol_version
            self._log_limit.log(log.warning, "a gateway is refused", why=refused.reason)
        self.send(peer, [refused])
        return True


def _request_in(frame: bytes) -> RequestId | None:
    try:
        return msgspec.msgpack.decode(frame, type=_AnySubmit).request_id
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
