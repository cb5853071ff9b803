"""The port of a stage: its coordinator and the stage before connect to it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import zmq

from starspec.audit import AuditLog
from starspec.ids import PeerId
from starspec.policy.peer_limits import STAGE_BURST, STAGE_PER_S, Allowance
from starspec.wire.callers import Caller, named_key_of
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, encode
from starspec.wire.keys import Keys, NamedKey
from starspec.wire.messages import StageToCoordinator
from starspec.wire.transports.server_socket import ServerSocket
from starspec.wire.transports.sockets import Context, Socket, receive_at_most
from starspec.wire.transports.unread import LARGE
from starspec.wire.transports.unsent import Unsent

MAX_HIDDEN_BYTES: Final = 64 * 2**20  # of one traversal: a chunk of 256 tokens of a model of 65,536 numbers each
NUM_CONTROL, NUM_TRAVERSAL = 1, 3  # frames
READ_BURST: Final = 256  # multiparts read before the stage computes
MAX_PEERS: Final = 4096  # connections that are remembered


class StageArrival(NamedTuple):
    """A multipart that came to a stage."""

    peer: PeerId
    caller: Caller | None  # who sent it; None = there are no keys
    frames: Sequence[bytes | memoryview]  # 1: a control message; 3: a traversal
    arrived_s: float  # on the port's clock

    @property
    def is_traversal(self) -> bool:
        return len(self.frames) == NUM_TRAVERSAL

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.frames))


class _Connection:
    """One that somebody talked over, with this key, and what it has not read."""

    def __init__(self, key: NamedKey) -> None:
        self.key: Final = key
        self.fd = -1  # its descriptor
        self.unsent: Final = Unsent()
        self.allowance: Final = Allowance(STAGE_PER_S, STAGE_BURST)  # of multiparts


class StagePort:
    """A stage's end. It listens when the constructor returns. Used by one thread.

    Args:
        port: 0 = any free one; see the attribute `port`.
        keys: of role "stage".
        is_insecure: allow a host that is not loopback without keys.
        audit: gets refused keys.
    Raises: ConfigError if it cannot or must not listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        keys: Keys | None,
        is_insecure: bool,
        audit: AuditLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_rejected = 0  # multiparts that are neither
        self._clock = clock
        self._connections: OrderedDict[bytes, _Connection] = OrderedDict()  # the one heard last at the end
        max_frame_bytes = max(MAX_TRAVERSAL_BYTES, MAX_HIDDEN_BYTES)
        self._server = ServerSocket(
            "the stage", host, port, keys, is_insecure, audit, clock, max_frame_bytes=max_frame_bytes, limits=LARGE
        )
        self.port = self._server.port

    @property
    def context(self) -> Context:
        """For the stage's connections to the next one."""
        return self._server.context

    @property
    def sockets(self) -> Sequence[Socket]:
        """What to wait for."""
        return [self._server.socket]

    @property
    def num_moves(self) -> int:
        """It grows while a long message arrives, however slowly. Callable from any thread."""
        return self._server.unread.num_moves

    def receive(self) -> list[StageArrival]:
        """What has arrived, in order for each peer. Never waits.

        Effects: ends the connections of keys that were removed, or got another name or role, and those that flood.
        """
        arrived, now = [], self._clock()
        for _ in range(READ_BURST):
            try:
                sender, frames, num_beyond = receive_at_most(self._server.socket, NUM_TRAVERSAL)
            except zmq.Again:
                self._server.unread.note_empty()
                break
            connection = self._note(sender.bytes, frames[0], self._server.unread.hear(frames[0], frames[1:]))
            if num_beyond or not connection.allowance.take(1.0, now):
                self._server.shut_out(sender.bytes, frames[0])
            if self._server.unread.is_barred(sender.bytes) or len(frames) not in (NUM_CONTROL, NUM_TRAVERSAL):
                self.num_rejected += 1
                continue
            caller = self._caller_of(connection)
            if self._may_talk(connection, caller):
                arrived.append(StageArrival(PeerId(sender.bytes), caller, [each.buffer for each in frames], now))
            else:
                self._server.unread.bar(sender.bytes, frames[0])  # it comes again: the door refuses it, or it is new
        return arrived

    def why_not_named(self, caller: Caller | None, target_id: str) -> str | None:
        """As `Callers`; None if there are no keys."""
        callers = self._server.callers
        return None if callers is None or caller is None else callers.why_not_named(caller, target_id)

    def send(self, peer: PeerId, message: StageToCoordinator) -> bool:
        """Send without waiting.

        Returns: False if the coordinator is gone, does not read or has a key that was removed.
        Effects: ends the connection of one that does not read.
        """
        connection = self._connections.get(peer)
        if connection is None or not self._may_talk(connection, self._caller_of(connection)):
            return False
        try:
            connection.unsent.send(self._server.socket, [peer, encode(message, MAX_TRAVERSAL_BYTES)])
        except zmq.ZMQError as error:
            if isinstance(error, zmq.Again):
                self._server.unread.cut(connection.fd)  # what waits for it takes memory
            return False
        return True

    def _caller_of(self, connection: _Connection) -> Caller | None:
        """Whose key it has; None if the key was removed, or if there are no keys."""
        callers = self._server.callers
        return None if callers is None else callers.owner_of(connection.key.public)

    def _may_talk(self, connection: _Connection, caller: Caller | None) -> bool:
        """Whether its key is still in the folder, under the name that it had."""
        return self._server.callers is None or (caller is not None and caller.key_name == connection.key.name)

    def _note(self, peer: bytes, frame: zmq.Frame, fd: int) -> _Connection:
        """This frame came over this connection."""
        known = self._connections.get(peer)
        if known is None:
            known = self._connections[peer] = _Connection(named_key_of(frame, self._server.callers))
        known.fd = fd
        self._connections.move_to_end(peer)
        if len(self._connections) > MAX_PEERS:
            self._connections.popitem(last=False)
        return known

    def close(self) -> None:
        """As ServerSocket."""
        self._server.close()
