"""The hub's public port: it answers `Hello` with a link of the target's own, and `Ask` with the hub's status."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import zmq

from starspec.errors import ConfigError, LinkError, PeerProtocolError
from starspec.ids import LinkId
from starspec.wire.codec import MAX_FRAME_BYTES, MAX_PUBLIC_FRAME_BYTES, Decoder, encode
from starspec.wire.keys import Keys
from starspec.wire.link import FAULT_INTERVAL_S
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Ask,
    Fault,
    HandshakeMessage,
    Hello,
    HubPublicReply,
    Refused,
    Welcome,
)
from starspec.wire.transports.base import Admit, HubTransportStats, Report
from starspec.wire.transports.hub_link import READ_BURST, HubLink
from starspec.wire.transports.sockets import Context, Socket, bind, make_socket


@dataclass(frozen=True, slots=True)
class Ports:
    """Opens the listening ports of one hub.

    Args:
        data_ports: inclusive range of the targets' own ports; None = any free ones.
    """

    context: Context
    host: str
    keys: Keys | None
    data_ports: tuple[int, int] | None

    def open(self, port: int, max_frame_bytes: int) -> tuple[Socket, int]:
        """A listening ROUTER socket and its port. Raises: ConfigError if it cannot listen there."""
        socket = make_socket(self.context, zmq.ROUTER, max_frame_bytes)
        try:
            if self.keys is not None:
                self.keys.secure_server(socket)
            return socket, bind(socket, self.host, port, "the hub")
        except BaseException:
            socket.close()
            raise

    def open_data_port(self) -> tuple[Socket, int]:
        """A port for one target. Raises: ConfigError if none is free."""
        if self.data_ports is None:
            return self.open(0, MAX_FRAME_BYTES)
        first, last = self.data_ports
        for port in range(first, last + 1):
            try:
                return self.open(port, MAX_FRAME_BYTES)
            except ConfigError:
                continue
        raise ConfigError(f"every port from {first} to {last} is taken")


class _AnyHello(msgspec.Struct, tag_field="type", tag="hello"):
    """The field that a Hello has in every protocol version."""

    protocol_version: int


class PublicPort:
    """Answers Hello and Ask. Used by the I/O thread only.

    Args:
        socket: bound to the public port; this object closes it.
    """

    def __init__(self, socket: Socket, ports: Ports, admit: Admit, report: Report, stats: HubTransportStats) -> None:
        self.socket = socket
        self._ports = ports
        self._admit = admit
        self._report = report
        self._stats = stats
        self._decoder: Decoder[Hello | Ask] = Decoder(HandshakeMessage, max_frame_bytes=MAX_PUBLIC_FRAME_BYTES)
        self._links: dict[bytes, HubLink] = {}  # by connection, so that a repeated Hello gets the same link
        self._fault_at = -math.inf

    def read(self, links: Iterable[HubLink], now: float) -> list[HubLink]:
        """Answer what has arrived. Returns: the new links. Effects: another Hello ends its sender's old link."""
        held = list(links)
        self._links = {peer: link for peer, link in self._links.items() if link.left is None}
        num_before = len(held)
        for _ in range(READ_BURST):
            try:
                peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            reply = self._answer(peer, frames, held, now)
            if reply is not None:
                self._send(peer, reply)
        return held[num_before:]

    def close(self) -> None:
        """Close the public port."""
        self.socket.close()

    def _answer(self, peer: bytes, frames: list[bytes], held: list[HubLink], now: float) -> HubPublicReply | None:
        try:
            if len(frames) != 1:
                raise PeerProtocolError(f"{len(frames)} frames at the public port: one message at a time")
            message = self._decode(frames[0])
        except PeerProtocolError as error:
            return self._fault(error, now)
        match message:
            case Ask(protocol_version=version) if version != PROTOCOL_VERSION:
                return Refused.for_version(version, them="the gateway")
            case Ask():
                return self._report()
            case Refused():
                return message
            case Hello():
                return self._greet(peer, message, held, now)

    def _decode(self, frame: bytes) -> Hello | Ask | Refused:
        """The message, or the refusal of a peer of another version. Raises: PeerProtocolError."""
        try:
            return self._decoder.decode(frame)
        except PeerProtocolError:
            if (refused := _refuse_other_version(frame)) is not None:
                return refused
            raise

    def _greet(self, peer: bytes, hello: Hello, held: list[HubLink], now: float) -> Welcome | Refused:
        link = self._links.get(peer)
        if link is not None and link.left is None:
            if link.hello == hello:
                return link.welcome_again(now)
            link.end("sent another Hello")
        answer = self._admit(hello, sum(link.left is None for link in held))
        if isinstance(answer, Welcome):
            answer = self._begin(peer, hello, answer, held, now)
        if isinstance(answer, Refused):
            self._stats.num_refused += 1
        return answer

    def _begin(self, peer: bytes, hello: Hello, terms: Welcome, held: list[HubLink], now: float) -> Welcome | Refused:
        try:
            socket, port = self._ports.open_data_port()
            welcome = msgspec.structs.replace(terms, link_id=LinkId(secrets.token_hex(16)), port=port)
            link = HubLink(socket, hello, welcome, self._stats, now)
        except (ConfigError, zmq.ZMQError) as error:  # ZMQError: the process has no socket left
            return Refused("full", f"the hub has no port left for this target: {error}", retry_after_s=terms.lease_s)
        self._links[peer] = link
        held.append(link)
        return welcome

    def _fault(self, error: PeerProtocolError, now: float) -> Fault | None:
        self._stats.num_frames_rejected += 1
        if now - self._fault_at < FAULT_INTERVAL_S:
            return None
        self._fault_at = now
        return Fault(str(error))

    def _send(self, peer: bytes, reply: HubPublicReply) -> None:
        try:
            self.socket.send_multipart([peer, encode(reply)], zmq.NOBLOCK)
        except (zmq.ZMQError, LinkError):  # the peer is gone or does not read, or the status is too large for a frame
            self._stats.num_dropped += 1


def _refuse_other_version(frame: bytes) -> Refused | None:
    try:
        version = msgspec.msgpack.decode(frame, type=_AnyHello).protocol_version
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if version == PROTOCOL_VERSION:
        return None
    return Refused.for_version(version)
