"""A target's end of the serving link: requests of gateways in, outputs out. Used by the engine's thread between steps.

A gateway that reconnects is a new peer. The requests of its old connection end with the lease, or as soon as an output
cannot be delivered. The other end is `serving_client.py`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog
import zmq

from starspec.audit import AuditLog
from starspec.errors import LinkError, PeerProtocolError
from starspec.ids import PeerId, RequestId
from starspec.log_limit import LogLimit
from starspec.wire.callers import Callers, CurveAuthenticator, key_name_of
from starspec.wire.codec import MAX_FRAME_BYTES, MAX_MESSAGES, Decoder, encode
from starspec.wire.keys import Keys, require_keys
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Ask,
    GatewayToTarget,
    Refused,
    Rejected,
    TargetToGateway,
)
from starspec.wire.messages.base import RequestName
from starspec.wire.transports.sockets import GOODBYE_MS, Context, bind, make_socket

READ_BURST: Final = 256  # multiparts read before the engine goes on
MAX_PEERS: Final = 1024  # whose keys are known; the one that has been silent the longest is forgotten

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
        require_keys(host, keys, is_insecure, "the target would listen on")
        self._context: Context = zmq.Context()
        self._audit = audit or AuditLog.off()
        self._log_limit = LogLimit(clock)
        self._callers: Callers | None = None
        self._key_names: OrderedDict[PeerId, str] = OrderedDict()  # of peers, the one heard last at the end
        self._decoder: Decoder[GatewayToTarget] = Decoder(GatewayToTarget)
        self._is_closed = False
        self.num_frames_rejected = 0  # multiparts that broke the protocol
        self.num_dropped = 0  # messages to gateways that are gone or do not read
        self._refused_version = PROTOCOL_VERSION  # the last one that was refused and logged
        self._socket = make_socket(self._context, zmq.ROUTER, MAX_FRAME_BYTES)
        try:
            if keys is not None:
                keys.secure_server(self._socket)
                self._callers = Callers(keys)
                CurveAuthenticator(self._context, self._callers, self._audit, clock)
            self.port = bind(self._socket, host, port, "the target")
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float) -> list[tuple[PeerId, GatewayToTarget]]:
        """Return (gateway, message) pairs in order of arrival. Waits up to `timeout_s` for the first; 0 = not at all.

        A malformed frame is dropped and counted; if it was a Submit, its gateway gets a Rejected. An Ask of another
        protocol version is answered with Refused, each time.
        """
        if timeout_s > 0:
            self._socket.poll(int(timeout_s * 1000))
        arrived: list[tuple[PeerId, GatewayToTarget]] = []
        for _ in range(READ_BURST):
            try:
                first, *rest = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            peer, frames = PeerId(first.bytes), [frame.bytes for frame in rest]
            if rest and self._callers is not None:
                self._note_key(peer, key_name_of(rest[0]))
            if self._may_talk(peer):
                arrived += self._messages(peer, frames)
        return arrived

    def send(self, peer: PeerId, messages: Sequence[TargetToGateway]) -> bool:
        """Send messages without waiting. They travel together, in multiparts of at most MAX_MESSAGES.

        Returns: False if the gateway is gone, does not read or has a key that was removed, or if a message is too large
            for a frame.
        """
        if not self._may_talk(peer):
            self.num_dropped += len(messages)
            return False
        for start in range(0, len(messages), MAX_MESSAGES):
            try:
                frames = [encode(message) for message in messages[start : start + MAX_MESSAGES]]
                self._socket.send_multipart([peer, *frames], zmq.NOBLOCK)
            except (zmq.ZMQError, LinkError):
                self.num_dropped += len(messages) - start
                return False
        return True

    def close(self) -> None:
        """Close the port. What was sent has GOODBYE_MS to leave. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._socket.close(linger=GOODBYE_MS)
            self._context.term()

    def _note_key(self, peer: PeerId, key_name: str) -> None:
        if peer not in self._key_names:
            self._audit.note("gateway_connected", key=key_name, peer=peer.hex())
        self._key_names[peer] = key_name
        self._key_names.move_to_end(peer)
        if len(self._key_names) > MAX_PEERS:
            self._key_names.popitem(last=False)

    def _may_talk(self, peer: PeerId) -> bool:
        """Whether the peer's key is still in the folder. ZeroMQ cannot close one connection: it is ignored instead."""
        return self._callers is None or self._callers.is_allowed(self._key_names.get(peer, ""))

    def _messages(self, peer: PeerId, frames: list[bytes]) -> list[tuple[PeerId, GatewayToTarget]]:
        try:
            messages = self._decoder.decode_all(frames)
        except PeerProtocolError as error:
            self.num_frames_rejected += 1
            for request_id in map(_request_in, frames):
                if request_id is not None:
                    self.send(peer, [Rejected(request_id, str(error))])
            return []
        return [(peer, message) for message in messages if not self._is_refused(peer, message)]

    def _is_refused(self, peer: PeerId, message: GatewayToTarget) -> bool:
        if not isinstance(message, Ask) or message.protocol_version == PROTOCOL_VERSION:
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
