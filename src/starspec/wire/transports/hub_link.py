"""The hub's end of one target's link: its port, its handshake, its lease."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import zmq

from starspec.audit import AuditLog
from starspec.errors import PeerProtocolError
from starspec.log_limit import LogLimit
from starspec.policy.peer_limits import (
    DRAFT_WORK,
    WORK_BURST,
    WORK_PER_S,
    Allowance,
    share_of_work,
    should_pause,
    spared_by_features,
    work_of,
)
from starspec.wire.callers import Doorkeeper
from starspec.wire.codec import MAX_FRAME_BYTES, MAX_MESSAGES, Decoder, encode
from starspec.wire.keys import NamedKey
from starspec.wire.link import FAULT_INTERVAL_S, LinkProtocol, LinkState
from starspec.wire.messages import Fault, Features, Goodbye, Hello, Open, Ping, Pong, TargetToHub, Welcome
from starspec.wire.transports.base import Arrival, HubTransportStats, Joined, Left
from starspec.wire.transports.hub_outbox import PROBE, WINDOW_BYTES
from starspec.wire.transports.sockets import GOODBYE_MS, LOST, Socket, name_of, receive_at_most
from starspec.wire.transports.unread import Limits
from starspec.wire.transports.unread_guard import MAX_OWN_CONNECTIONS, UnreadMonitor
from starspec.wire.transports.unsent import Unsent

ATTACH_S: Final = 5.0  # from Welcome to the first ping on the target's own port
TARGET_LIMITS: Final = Limits(whole=3 * WINDOW_BYTES // 2)  # of what is not read: an honest one stays within the window
STRANGE_PER_S: Final = 1000.0  # messages of strangers at a target's own port; beyond them they are ended
STRANGE_BURST: Final = 1024.0
READ_BURST: Final = 64  # multiparts of one target before the next target is read

log = structlog.get_logger()


class HubLink:
    """One target, from Welcome to Left. Used by the I/O thread only.

    Args:
        socket: bound to the target's own port; this link closes it.
        terms: the Welcome for the target, with its `link_id` and `port`.
        stats: counts what is not passed on to the hub.
        doorkeeper: told of connections that flood.
        may_join: asked when the target has come to its port; returns whether there is a place for it.
        now: seconds on the transport's clock, here and below.
        key: that said Hello.
        owner: of the place of this target, as `policy/newcomers.py` says.
        max_len: tokens of an Open, beyond which they are not decoded.
    """

    def __init__(
        self,
        socket: Socket,
        hello: Hello,
        terms: Welcome,
        stats: HubTransportStats,
        now: float,
        key: NamedKey,
        audit: AuditLog,
        log_limit: LogLimit,
        doorkeeper: Doorkeeper,
        may_join: Callable[[], bool] = lambda: True,
        owner: str = "",
        max_len: int = MAX_FRAME_BYTES,
    ) -> None:
        self.socket = socket
        self.hello = hello
        self.link_id = terms.link_id
        self.key = key
        self.owner = owner
        self._audit = audit
        self._log_limit = log_limit
        self.num_queued = 0  # backlog of the arrivals handed to the hub so far
        self.has_joined = False  # whether the hub knows of this link
        self.left: str | None = None  # why the link is over
        self.used_at = now  # when the target opened a tag to get drafts, or got some, last
        self._allowance = Allowance(WORK_PER_S, WORK_BURST)
        self.has_sent_too_much = False  # more than its allowance, when it was read last
        self._monitor = UnreadMonitor(
            socket, LOST, most=MAX_OWN_CONNECTIONS, limits=TARGET_LIMITS, shut=doorkeeper.shut
        )
        self._name = terms.link_id.encode()  # what only the target knows
        self._peer: bytes | None = None  # its connection, once something came over it
        self._decoder: Decoder[TargetToHub] = Decoder(TargetToHub, hello.vocab_size, max_len=max_len)
        self._unsent = Unsent()
        self._stats = stats
        self._may_join = may_join
        self._doorkeeper = doorkeeper
        self._strange = Allowance(STRANGE_PER_S, STRANGE_BURST)
        self._heard_at = now
        self._fault_at = -math.inf
        self._is_probe_due = False
        self._link = LinkProtocol()
        self._link.receive(hello)
        self._welcome = self._link.send(terms)

    def read(self, now: float) -> list[Arrival]:
        """Read what has arrived, at most READ_BURST multiparts, or until they are much for the hub.

        Effects: may end the link (`left`).
        """
        arrivals: list[Arrival] = []
        backlog = 0
        for _ in range(READ_BURST):
            num_before = len(arrivals)
            try:
                peer, frames = self._read_one(now)
            except zmq.Again:
                self._monitor.unread.note_empty()
                break
            try:
                self._check_peer(peer)
                work = work_of(frames)
                for message in self._decoder.decode_all(frames):
                    if isinstance(message, Features):
                        work -= spared_by_features(len(message.data))
                    self._accept(self._link.receive(message), now, arrivals)
            except PeerProtocolError as error:
                self._reject(peer, error, now)
            if peer == self._peer:
                self.has_sent_too_much = not self._allowance.take(work, now)
            backlog += sum(each.backlog for each in arrivals[num_before:])
            if self.left is not None or should_pause(backlog, has_sent_too_much=self.has_sent_too_much):
                break
        self.num_queued += backlog
        return arrivals

    def write(self, frames: Sequence[bytes], num_drafts: int, now: float) -> bool:
        """Send frames without waiting.

        Args:
            num_drafts: how many of them are proposals with draft tokens.
        Returns: False if the target is gone or does not read. Effects: may end the link (`left`).
        """
        if num_drafts:
            self.used_at = now
        self._allowance.owe(DRAFT_WORK * num_drafts)
        return all(self._send(frame) for frame in frames)

    def share_work(self, num_links: int) -> None:
        """The targets of so many links share what may be sent unasked."""
        self._allowance.set_rate(share_of_work(num_links))

    def resume(self, now: float) -> bool:
        """Let the target send again, if its allowance permits it. Returns: whether it may."""
        may_send = self._allowance.has_units(now)
        self.has_sent_too_much &= not may_send
        return may_send

    def welcome_again(self) -> Welcome:
        """The answer to a repeated Hello. The time to attach goes on."""
        return self._welcome

    def check(self, now: float) -> None:
        """Notice a broken connection or an expired lease. End connections that send what can never be read.

        Effects: may end the link (`left`).
        """
        if self._is_probe_due and self._link.state is LinkState.CONNECTED:
            self._probe()
        self._is_probe_due = bool(list(self._monitor.events()))
        self._stats.num_frames_rejected += self._monitor.unread.look()
        if self._link.state is LinkState.ATTACHING and now - self._heard_at > ATTACH_S:
            self.end("did not connect to its port")
        elif self._link.state is LinkState.CONNECTED and now - self._heard_at > self._welcome.lease_s:
            self._stats.num_leases_expired += 1
            self.end(f"was silent for {self._welcome.lease_s:g} s")

    def extend(self, seconds: float) -> None:
        """Extend the lease by a time in which nothing was read."""
        self._heard_at += seconds

    def dismiss(self, reason: str) -> None:
        """End the link, and tell the target."""
        self._send(encode(Goodbye(reason)))
        self.socket.linger = GOODBYE_MS
        self.end(reason)

    def give_up_port(self) -> int:
        """Stop to listen, after `dismiss`: connections stay. Returns: the port, which is free soon."""
        endpoint = self.socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.socket.unbind(endpoint)
        return self._welcome.port

    def end(self, reason: str) -> None:
        """End the link. The first reason counts."""
        self._link.lose()
        self.left = self.left or reason

    def close(self, linger_ms: int | None = None) -> None:
        """Close the port and the sockets.

        Args:
            linger_ms: how long what was written may still leave; None = as long as after `dismiss`, or not at all.
        """
        if linger_ms is not None:
            self.socket.linger = linger_ms
        self._monitor.close()

    def last_arrival(self, now: float) -> Arrival:
        """The last arrival of this link."""
        self._log("target left", reason=self.left)
        self._audit.note("target_left", target=self.hello.target_id, link=self.link_id, why=self.left)
        return self._arrival(Left(self.left or "the hub is closing"), now)

    def _log(self, event: str, reason: str | None = None) -> None:
        """A target that comes and goes can cause these lines as often as the hub greets newcomers."""
        why = {} if reason is None else {"reason": reason}
        self._log_limit.log(log.info, event, target=self.hello.target_id, link=self.link_id, **why)

    def _read_one(self, now: float) -> tuple[bytes, list[bytes]]:
        """The connection and the frames of one multipart. Raises: zmq.Again if nothing has arrived.

        Effects: the first connection of a peer with the link's name is the target's.
        """
        sender, frames, num_beyond = receive_at_most(self.socket, MAX_MESSAGES)
        if self._peer is None and name_of(frames[0]) == self._name:
            self._peer = sender.bytes
        if sender.bytes == self._peer:  # another one stays a newcomer, whatever it says
            self._monitor.unread.hear(frames[0], frames[1:], owner=self.owner)
        elif not self._strange.take(1.0, now):
            num_beyond += 1
        if num_beyond:
            self._doorkeeper.shut_behind(frames[0])
            self._monitor.unread.bar(sender.bytes, frames[0])
            self._stats.num_frames_rejected += 1
            return sender.bytes, []
        return sender.bytes, [frame.bytes for frame in frames]

    def _accept(self, message: TargetToHub, now: float, arrivals: list[Arrival]) -> None:
        self._heard_at = now
        match message:
            case Ping(sequence=number):
                if self._link.state is LinkState.ATTACHING:
                    if not self._may_join():
                        self.dismiss("no place is left")
                        return
                    self.has_joined = True
                    self._log("target joined")
                    key = self.key.name or None
                    self._audit.note("target_connected", target=self.hello.target_id, link=self.link_id, key=key)
                    arrivals.append(self._arrival(Joined(self.hello), now))
                self._send(encode(self._link.send(Pong(number))))
                if number:
                    arrivals.append(self._arrival(message, now))
            case Goodbye(reason=reason):
                self.end(reason or "said goodbye")
            case Open(tag=tag):
                if message.num_draft_tokens:
                    self.used_at = now
                self._audit.note("tag_opened", link=self.link_id, tag=tag, num_tokens=message.num_tokens)
                arrivals.append(self._arrival(message, now))
            case _:
                arrivals.append(self._arrival(message, now))

    def _arrival(self, message: TargetToHub | Joined | Left, now: float) -> Arrival:
        return Arrival(self.link_id, self.hello.target_id, message, now)

    def _check_peer(self, peer: bytes) -> None:
        if peer != self._peer:
            raise PeerProtocolError("this port belongs to another link")

    def _reject(self, peer: bytes, error: PeerProtocolError, now: float) -> None:
        self._stats.num_frames_rejected += 1
        if now - self._fault_at >= FAULT_INTERVAL_S:
            self._fault_at = now
            with contextlib.suppress(zmq.ZMQError):  # who sent it is gone, or does not read
                self.socket.send_multipart([peer, encode(Fault(str(error)))], zmq.NOBLOCK)

    def _probe(self) -> None:
        """A connection to this port broke. If it was the target's own, the link is over."""
        try:
            self.socket.send_multipart([self._peer or b"", encode(PROBE)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:  # EAGAIN would mean that the target is there and does not read
                self.end("the connection broke")

    def _send(self, frame: bytes) -> bool:
        try:
            self._unsent.send(self.socket, [self._peer or b"", frame])
        except zmq.Again:
            self.end("does not read")
            return False
        except zmq.ZMQError:  # EHOSTUNREACH: it is gone
            return False
        return True
