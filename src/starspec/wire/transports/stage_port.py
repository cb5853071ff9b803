"""The port of a stage: its coordinator and the stage before connect to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import zmq

from starspec.audit import AuditLog
from starspec.ids import PeerId
from starspec.wire.callers import Caller, Callers, Doorkeeper, key_name_of
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, encode
from starspec.wire.keys import Keys, require_keys
from starspec.wire.messages import StageToCoordinator
from starspec.wire.transports.sockets import GOODBYE_MS, Context, Socket, bind, make_socket, receive_at_most
from starspec.wire.transports.unread import LARGE, UnreadGuard

MAX_HIDDEN_BYTES: Final = 64 * 2**20  # of one traversal: a chunk of 256 tokens of a model of 65,536 numbers each
NUM_CONTROL, NUM_TRAVERSAL = 1, 3  # frames
READ_BURST: Final = 256  # multiparts read before the stage computes


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
        require_keys(host, keys, is_insecure, "the stage would listen on")
        self.context: Context = Context()
        self.num_rejected = 0  # multiparts that are neither
        self._callers: Callers | None = None
        self._is_closed = False
        self._clock = clock
        self._socket = make_socket(self.context, zmq.ROUTER, max(MAX_TRAVERSAL_BYTES, MAX_HIDDEN_BYTES))
        try:
            if keys is not None:
                keys.secure_server(self._socket)
                self._callers = Callers(keys, clock)
            self._doorkeeper = Doorkeeper(self.context, self._callers, audit, clock)
            self.port = bind(self._socket, host, port, "the stage")
            self._unread = UnreadGuard(self._socket, limits=LARGE)
        except BaseException:
            self.close()
            raise

    @property
    def sockets(self) -> Sequence[Socket]:
        """What to wait for."""
        return [self._socket]

    def receive(self) -> list[StageArrival]:
        """What has arrived, in order for each peer. Never waits. What comes from a removed key is dropped."""
        arrived, now = [], self._clock()
        for _ in range(READ_BURST):
            try:
                sender, frames, num_beyond = receive_at_most(self._socket, NUM_TRAVERSAL)
            except zmq.Again:
                break
            self._unread.hear(frames[0])
            if num_beyond:
                self._unread.bar(sender.bytes, frames[0])
                self._doorkeeper.shut_behind(frames[0])
            if num_beyond or len(frames) not in (NUM_CONTROL, NUM_TRAVERSAL):
                self.num_rejected += 1
                continue
            caller = None if self._callers is None else self._callers.caller(key_name_of(frames[0]))
            if caller is not None or self._callers is None:
                arrived.append(StageArrival(PeerId(sender.bytes), caller, [each.buffer for each in frames], now))
        return arrived

    def why_not_named(self, caller: Caller | None, target_id: str) -> str | None:
        """As `Callers`; None if there are no keys."""
        return None if self._callers is None or caller is None else self._callers.why_not_named(caller, target_id)

    def send(self, peer: PeerId, message: StageToCoordinator) -> bool:
        """Send without waiting. Returns: False if the coordinator is gone or does not read."""
        try:
            self._socket.send_multipart([peer, encode(message, MAX_TRAVERSAL_BYTES)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Close the port. What was sent has GOODBYE_MS to leave. Other sockets of the context must be closed before."""
        if not self._is_closed:
            self._is_closed = True
            self._socket.close(linger=GOODBYE_MS)
            self.context.term()
