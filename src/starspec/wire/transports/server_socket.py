"""The socket of a server whose clients connect to one port: who may connect, and what a connection may bring."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from starspec.audit import AuditLog
from starspec.wire.callers import Callers, Doorkeeper
from starspec.wire.keys import Keys, require_keys
from starspec.wire.transports.sockets import GOODBYE_MS, Context, Socket, bind, make_socket
from starspec.wire.transports.unread import Limits
from starspec.wire.transports.unread_guard import UnreadGuard


class ServerSocket:
    """A ROUTER with a context of its own. It listens when the constructor returns.

    Args:
        what: who listens, for error messages, such as "the stage".
        port: 0 = any free one; see the attribute `port`.
        keys: of the server.
        is_insecure: allow a host that is not loopback without keys.
        audit: gets refused keys.
        clock: seconds, monotonic.
        max_frame_bytes: a peer that sends a longer frame is disconnected.
        limits: of what is unread of each connection.
    Raises: ConfigError if it cannot or must not listen there.
    """

    def __init__(
        self,
        what: str,
        host: str,
        port: int,
        keys: Keys | None,
        is_insecure: bool,
        audit: AuditLog,
        clock: Callable[[], float],
        *,
        max_frame_bytes: int,
        limits: Limits,
    ) -> None:
        require_keys(host, keys, is_insecure, f"{what} would listen on")
        self.context: Context = zmq.Context()
        self.callers: Callers | None = None  # None = there are no keys
        self._is_closed = False
        self.socket: Socket = make_socket(self.context, zmq.ROUTER, max_frame_bytes)
        try:
            if keys is not None:
                keys.secure_server(self.socket)
                self.callers = Callers(keys, clock)
            self._doorkeeper = Doorkeeper(self.context, self.callers, audit, clock)
            self.port = bind(self.socket, host, port, what)
            self.unread = UnreadGuard(self.socket, limits=limits, shut=self._doorkeeper.shut)
        except BaseException:
            self.close()
            raise

    def shut_out(self, peer: bytes, frame: zmq.Frame) -> bool:
        """The connection of this frame floods: end it, and let no other one of its owner in for a while.

        Returns: whether this is the first time.
        """
        self._doorkeeper.shut_behind(frame)
        return self.unread.bar(peer, frame)

    def close(self) -> None:
        """Close the port. What was sent has GOODBYE_MS to leave. Other sockets of the context must be closed before.

        Idempotent.
        """
        if not self._is_closed:
            self._is_closed = True
            self.socket.close(linger=GOODBYE_MS)
            self.context.term()
