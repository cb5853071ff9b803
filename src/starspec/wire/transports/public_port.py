"""The hub's public port: it answers `Hello` with a link of the target's own, and `Ask` with the hub's status."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec
import zmq

from starspec.audit import AuditLog
from starspec.errors import ConfigError, LinkError, PeerProtocolError
from starspec.ids import LinkId
from starspec.log_limit import LogLimit
from starspec.policy import newcomers
from starspec.policy.peer_limits import Allowance
from starspec.wire.callers import Caller, Callers, Doorkeeper, named_key_of, owner_of
from starspec.wire.codec import MAX_FRAME_BYTES, MAX_PUBLIC_FRAME_BYTES, Decoder, encode
from starspec.wire.keys import Keys, NamedKey
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
from starspec.wire.transports.sockets import Context, Socket, bind, make_socket, receive_at_most
from starspec.wire.transports.unread import NEWCOMER_BYTES, Limits
from starspec.wire.transports.unread_guard import UnreadMonitor

ASKS_PER_S: Final = 1000.0  # messages of one connection to the public port; beyond them it is ended
ASKS_BURST: Final = 1024.0
MAX_ASKING: Final = 4096  # connections that are remembered
FREED_S: Final = 0.02  # for which a port that was given up is waited for; it takes a millisecond
FREED_LOOK_S: Final = 0.0005
DRAIN_COST: Final = 1 / 8  # of READ_BURST: what a message costs that is dropped unseen


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

    def open(self, port: int, max_frame_bytes: int, only: bytes = b"") -> tuple[Socket, int]:
        """A listening ROUTER socket and its port.

        Args:
            only: as `Keys.secure_server`.
        Raises: ConfigError if it cannot listen there.
        """
        socket = make_socket(self.context, zmq.ROUTER, max_frame_bytes)
        try:
            if self.keys is not None:
                self.keys.secure_server(socket, only)
            return socket, bind(socket, self.host, port, "the hub")
        except BaseException:
            socket.close()
            raise

    def open_data_port(self, only: bytes = b"") -> tuple[Socket, int]:
        """A port for one target, which only its key may use. Raises: ConfigError if none is free."""
        if self.data_ports is None:
            return self.open(0, MAX_FRAME_BYTES, only)
        first, last = self.data_ports
        for port in range(first, last + 1):
            try:
                return self.open(port, MAX_FRAME_BYTES, only)
            except ConfigError:
                continue
        raise ConfigError(f"every port from {first} to {last} is taken")

    def open_freed(self, port: int, only: bytes) -> tuple[Socket, int]:
        """As `open_data_port`, for a port that was given up just now: ZeroMQ closes it in a thread of its own.

        Effects: waits for that, for FREED_S at most.
        """
        until_s = time.monotonic() + FREED_S
        while True:
            try:
                return self.open(port, MAX_FRAME_BYTES, only)
            except ConfigError:
                if time.monotonic() > until_s:
                    raise
            time.sleep(FREED_LOOK_S)


class _Sender(NamedTuple):
    """Who sent something to the public port."""

    peer: bytes  # the connection
    key: NamedKey
    owner: str  # of the places of this sender's targets


class _AnyHello(msgspec.Struct, tag_field="type", tag="hello"):
    """The field that a Hello has in every protocol version."""

    protocol_version: int


class PublicPort:
    """Answers Hello and Ask. Used by the I/O thread only.

    Args:
        socket: bound to the public port; this object closes it.
        callers: who may connect, and as what; None = the hub has no keys, and everybody may.
        max_len: as for `HubLink`.
        clock: seconds, monotonic.
        chance: of who gives way if too many come at once; None = seeded anew.
    """

    def __init__(
        self,
        socket: Socket,
        ports: Ports,
        admit: Admit,
        report: Report,
        stats: HubTransportStats,
        callers: Callers | None,
        doorkeeper: Doorkeeper,
        audit: AuditLog,
        max_len: int,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self.socket = socket
        self._monitor = UnreadMonitor(socket, limits=Limits(whole=NEWCOMER_BYTES), shut=doorkeeper.shut)
        self._ports = ports
        self._admit = admit
        self._report = report
        self._stats = stats
        self._callers = callers
        self._doorkeeper = doorkeeper
        self._audit = audit
        self._max_len = max_len
        self._decoder: Decoder[Hello | Ask] = Decoder(HandshakeMessage, max_frame_bytes=MAX_PUBLIC_FRAME_BYTES)
        self._log_limit = LogLimit(clock)
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 (not for secrets)
        self._newcomers = newcomers.Door()
        self._takers = newcomers.Door(newcomers.TAKES_PER_S, newcomers.TAKES_BURST)
        self._turns = newcomers.Turns()
        self._links: dict[bytes, HubLink] = {}  # by connection, so that a repeated Hello gets the same link
        self._asking: OrderedDict[bytes, Allowance] = OrderedDict()  # by connection; the one heard last at the end
        self._fault_at = -math.inf

    def read(self, links: Iterable[HubLink], now: float) -> list[HubLink]:
        """Answer what has arrived. Returns: the new links. Effects: another Hello ends its sender's old link."""
        held = list(links)
        self._links = {peer: link for peer, link in self._links.items() if link.left is None}
        num_before = len(held)
        num_left = float(READ_BURST)
        while num_left > 0:
            try:
                first, [frame], num_beyond = receive_at_most(self.socket, 1)
            except zmq.Again:
                self._monitor.unread.note_empty()
                break
            if self._monitor.unread.is_barred(first.bytes):  # it came before the connection ended
                self._stats.num_frames_rejected += 1
                num_left -= DRAIN_COST
                continue
            num_left -= 1.0
            sender = self._sender(first)
            self._monitor.unread.hear(frame, owner=sender.owner)
            if num_beyond or not self._may_ask(sender.peer, now):
                self._monitor.unread.bar(sender.peer, frame)
                self._doorkeeper.shut_behind(frame)
                self._stats.num_frames_rejected += 1
            elif (reply := self._answer(sender, frame.bytes, held, now)) is not None:
                self._send(sender.peer, reply)
        return held[num_before:]

    def _may_ask(self, peer: bytes, now: float) -> bool:
        """Whether this connection brings no more messages than an honest one."""
        asking = self._asking.setdefault(peer, Allowance(ASKS_PER_S, ASKS_BURST))
        self._asking.move_to_end(peer)
        if len(self._asking) > MAX_ASKING:
            self._asking.popitem(last=False)
        return asking.take(1.0, now)

    def check(self, links: Iterable[HubLink]) -> None:
        """End the links whose key is no longer in the folder, and connections that send what can never be read."""
        self._stats.num_frames_rejected += self._monitor.look()
        self._end_links_of_removed_keys(links)

    def _end_links_of_removed_keys(self, links: Iterable[HubLink]) -> None:
        if self._callers is None:
            return
        for link in links:
            if link.left is None and not self._callers.is_allowed(link.key):
                link.end("its key was removed")

    def close(self) -> None:
        """Close the public port."""
        self._monitor.close()

    def _sender(self, identity: zmq.Frame) -> _Sender:
        """Who sent something."""
        return _Sender(identity.bytes, named_key_of(identity, self._callers), owner_of(identity, self._callers))

    def _answer(self, sender: _Sender, frame: bytes, held: list[HubLink], now: float) -> HubPublicReply | None:
        try:
            message = self._decode(frame)
        except PeerProtocolError as error:
            return self._fault(error, now)
        if (refused := self._why_refused(message, sender)) is not None:
            return refused
        match message:
            case Ask(protocol_version=version) if version != PROTOCOL_VERSION:
                return Refused.for_version(version, them="the gateway")
            case Ask():
                return self._report()
            case Refused():
                return message
            case Hello():
                return self._greet(sender, message, held, now)

    def _decode(self, frame: bytes) -> Hello | Ask | Refused:
        """The message, or the refusal of a peer of another version. Raises: PeerProtocolError."""
        try:
            return self._decoder.decode(frame)
        except PeerProtocolError:
            if (refused := _refuse_other_version(frame)) is not None:
                return refused
            raise

    def _why_refused(self, message: Hello | Ask | Refused, sender: _Sender) -> Refused | None:
        """The refusal of what this key may not ask; None if it may, and if there are no keys."""
        if self._callers is None or isinstance(message, Refused):
            return None
        caller = self._callers.owner_of(sender.key.public)
        if caller is None:
            why: str | None = f"the key {sender.key.name} was removed at the hub"
        elif isinstance(message, Ask):
            why = None if caller.role == "gateway" else _wrong_role(caller, "ask for the hub's status", "a gateway")
        elif caller.role != "target":
            why = _wrong_role(caller, "get proposals", "a target")
        else:
            why = self._callers.why_not_named(caller, message.target_id)
        if why is None:
            return None
        self._stats.num_refused += 1
        name = message.target_id if isinstance(message, Hello) else None
        self._audit.note("refused", key=sender.key.name, target=name, code="key", why=why)
        return Refused("key", why)

    def _greet(self, sender: _Sender, hello: Hello, held: list[HubLink], now: float) -> Welcome | Refused:
        link = self._links.get(sender.peer)
        if link is not None and link.left is None:
            if link.hello == hello:
                return link.welcome_again()
            link.end("sent another Hello")
        answer = self._admit(hello, self._num_kept(sender.owner, now))
        if isinstance(answer, Welcome):
            answer = self._begin(sender, hello, answer, held, now)
        if isinstance(answer, Refused):
            self._stats.num_refused += 1
            name, code = hello.target_id, answer.code
            self._audit.note("refused", key=sender.key.name or None, target=name, code=code, why=answer.reason)
        return answer

    def _begin(
        self, sender: _Sender, hello: Hello, terms: Welcome, held: list[HubLink], now: float
    ) -> Welcome | Refused:
        if not self._newcomers.lets_in(sender.owner, now):
            return Refused("full", "too many targets come at once", retry_after_s=newcomers.NEWCOMER_RETRY_S)
        if (late := newcomers.who_stops_coming(self._coming, self._chance)) is not None:
            late.end("other targets came meanwhile")
        try:
            socket, port = self._open_data_port(sender, now)
            welcome = msgspec.structs.replace(terms, link_id=LinkId(secrets.token_hex(16)), port=port)
            may_join = partial(self._may_join, hello, sender.owner)
            link = HubLink(
                socket,
                hello,
                welcome,
                self._stats,
                now,
                sender.key,
                self._audit,
                self._log_limit,
                self._doorkeeper,
                may_join,
                owner=sender.owner,
                max_len=self._max_len,
            )
        except (ConfigError, zmq.ZMQError) as error:  # ZMQError: the process has no socket left
            return Refused("full", f"the hub has no port left for this target: {error}", retry_after_s=terms.lease_s)
        self._links[sender.peer] = link
        self._turns.note(sender.owner, now)
        held.append(link)
        return welcome

    def _open_data_port(self, sender: _Sender, now: float) -> tuple[Socket, int]:
        """A port for this newcomer. Raises: ConfigError if there is none.

        Effects: if the range of ports has none left, a target loses its own: one that has not come to it, or else the
        one that would give its place.
        """
        try:
            return self._ports.open_data_port(sender.key.public)
        except ConfigError:
            leaver = self._who_leaves_port(sender.owner, now)
            if leaver is None or not self._takers.lets_in(sender.owner, now):  # all targets wait for `open_freed`
                raise
        leaver.dismiss("another target needs its port")
        return self._ports.open_freed(leaver.give_up_port(), sender.key.public)

    def _who_leaves_port(self, owner: str, now: float) -> HubLink | None:
        """The target whose port a newcomer of this owner gets, if all are taken; None if it gets none."""
        coming, places = {link: link.owner for link in self._coming}, self._places
        has_turn = self._turns.has_turn(owner, now)
        others = [place.owner for place in places.values()]
        late = newcomers.whose_port(coming, others, owner, has_turn=has_turn)
        return newcomers.whose_place(places, owner, now) if late is None and has_turn else late

    @property
    def _coming(self) -> list[HubLink]:
        """The links whose targets have not come to their ports yet."""
        return [link for link in self._links.values() if not link.has_joined and link.left is None]

    def _may_join(self, hello: Hello, owner: str) -> bool:
        """Whether a target that has come to its port gets a place. Effects: another target may lose its place."""
        now = self._clock()
        if not isinstance(self._admit(hello, self._num_kept(owner, now)), Welcome):
            return False
        places = self._places
        if not isinstance(self._admit(hello, len(places)), Welcome):
            leaver = newcomers.whose_place(places, owner, now)
            assert leaver is not None  # else `_num_kept` counts all
            leaver.dismiss(f"another target needs its place, and it has got no drafts for {now - leaver.used_at:.0f} s")
        return True

    @property
    def _places(self) -> dict[HubLink, newcomers.Place]:
        """The links that have a place: their targets have completed the handshake."""
        joined = [link for link in self._links.values() if link.has_joined and link.left is None]
        return {link: newcomers.Place(link.owner, link.used_at) for link in joined}

    def _num_kept(self, owner: str, now: float) -> int:
        """Places that a newcomer of this owner cannot get."""
        places = self._places
        return len(places) - (newcomers.whose_place(places, owner, now) is not None)

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


def _wrong_role(caller: Caller, action: str, needed: str) -> str:
    return f"the key {caller.key_name}.public is a {caller.role}'s: only {needed}'s key may {action}"


def _refuse_other_version(frame: bytes) -> Refused | None:
    try:
        version = msgspec.msgpack.decode(frame, type=_AnyHello).protocol_version
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if version == PROTOCOL_VERSION:
        return None
    return Refused.for_version(version)
