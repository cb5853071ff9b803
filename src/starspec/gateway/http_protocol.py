"""One HTTP connection with deadlines, and the table of all connections, which is bounded.

uvicorn's protocol waits for ever for a request, for its body, and for a client that does not read. This one ends each
of these waits. While an answer is generated, uvicorn also stops reading from a client that has sent its next request
already, and does not notice when this client leaves. Here the early bytes are kept until the answer is finished.

uvicorn parses whatever has arrived at once; 256 KiB of a body in chunks of one byte take it a second. Here the event
loop has a turn after each PIECE_BYTES.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from starspec.audit import AuditLog
from starspec.gateway.http_errors import HttpError
from starspec.gateway.metrics import REFUSED_AS
from starspec.log_limit import LogLimit
from starspec.policy.newcomers import longest_idle
from starspec.policy.retry_after import NO_CONNECTION_S

PIECE_BYTES: Final = 4 * 1024  # parsed at once; at worst 700 chunks of one byte, or a quarter of the longest head
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_EARLY_BYTES: Final = 64 * 1024  # of next requests, while an answer is generated
LINGER_S: Final = 1.0  # between an error and the close: a close at once, with bytes unread, would destroy the error

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a connection waits for its client, in seconds."""

    idle_s: float  # for the first byte of a request
    receive_s: float  # from there to the end of its head; as long for its body; and for a client that does not read


class ConnectionTable:
    """All open connections: at most `max_all`, and at most `max_per_address` of one client address.

    A newcomer takes the place of the connection that has been without a request for longest. If all have requests, the
    newcomer gets 503.
    """

    def __init__(self, max_all: int, max_per_address: int, log_limit: LogLimit, audit: AuditLog | None = None) -> None:
        self._max_all = max_all
        self._max_per_address = max_per_address
        self._log_limit = log_limit
        self._audit = audit or AuditLog.off()
        self._address_of: dict[GatewayProtocol, str] = {}
        self._num_at: Counter[str] = Counter()
        self._idle: dict[GatewayProtocol, str] = {}  # their addresses; the one idle for longest is the first

    def __len__(self) -> int:
        return len(self._address_of)

    def admit(self, connection: GatewayProtocol, address: str) -> bool:
        """Give the connection a place, as an idle one. Returns: whether there is one.

        Effects: may end an idle connection; logs a refusal.
        """
        if self._num_at[address] >= self._max_per_address and not self.end_an_idle_one(address):
            self._log_refusal("one address has as many connections as it may", address, self._max_per_address)
            return False
        if len(self) >= self._max_all and not self.end_an_idle_one():
            self._log_refusal("there are as many connections as there may be", address, self._max_all)
            return False
        self._address_of[connection] = address
        self._num_at[address] += 1
        self._idle[connection] = address
        self._audit.note("client_connected", client=address)
        return True

    def release(self, connection: GatewayProtocol) -> None:
        """The connection has ended. Idempotent."""
        self._idle.pop(connection, None)
        address = self._address_of.pop(connection, None)
        if address is not None:
            self._num_at[address] -= 1
            if not self._num_at[address]:
                del self._num_at[address]

    def set_idle(self, connection: GatewayProtocol, is_idle: bool) -> None:
        """Whether the connection has no complete request head. Does nothing if that is known."""
        if not is_idle:
            self._idle.pop(connection, None)
        elif connection in self._address_of:
            self._idle.setdefault(connection, self._address_of[connection])

    def end_an_idle_one(self, address: str | None = None) -> bool:
        """End the connection that has been idle for longest, of one address or of all.

        Returns: whether there was one.
        """
        connection = longest_idle(self._idle, address)
        if connection is None:
            return False
        self.release(connection)
        connection.abort()
        return True

    def _log_refusal(self, why: str, address: str, most: int) -> None:
        self._log_limit.log(log.warning, "a connection was refused", kind=why, why=why, client=address, most=most)


NoteRefusal = Callable[[str, HttpError], None]
"""Called with a client's address when its connection is answered with an error before there is a request."""


class Phase(enum.Enum):
    """What a connection waits for."""

    IDLE = enum.auto()  # the first byte of a request
    HEAD = enum.auto()  # the end of its head
    BODY = enum.auto()  # the end of its body
    ANSWER = enum.auto()  # us
    CLOSING = enum.auto()  # the client, to read the last bytes
    CLOSED = enum.auto()


class GatewayProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 connection, with deadlines.

    Args:
        table: where it has its place.
        timeouts: how long it waits.
        note_refusal: told of errors that nobody else counts.
        uvicorn: arguments of uvicorn's own protocol.
    """

    def __init__(self, table: ConnectionTable, timeouts: Timeouts, note_refusal: NoteRefusal, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._table = table
        self._timeouts = timeouts
        self._note_refusal = note_refusal
        self._phase = Phase.CLOSED
        self._deadline: asyncio.TimerHandle | None = None
        self._unread_deadline: asyncio.TimerHandle | None = None
        self._early = b""
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.max_size = PIECE_BYTES  # type: ignore[attr-defined]  # bytes that asyncio reads at once
        if self.client is None:
            self.abort()  # it has left already: nobody gives way to it
        elif self._table.admit(self, self.client[0]):
            self._follow()
        else:
            self.refuse(HttpError(503, "the gateway has no connection left: try again", retry_after_s=NO_CONNECTION_S))

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.release(self)
        self._enter(Phase.CLOSED)
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase in (Phase.CLOSING, Phase.CLOSED):
            return
        self._early += data
        if self._phase is not Phase.ANSWER:
            self._feed()
        elif len(self._early) > MAX_EARLY_BYTES:
            self.abort()

    def _feed(self) -> None:
        """Parse a piece of what has arrived, and the rest in later turns of the event loop."""
        if self._phase in (Phase.ANSWER, Phase.CLOSING, Phase.CLOSED) or not self._early:
            return
        piece, self._early = self._early[:PIECE_BYTES], self._early[PIECE_BYTES:]
        super().data_received(piece)
        self._follow()
        if self._early:
            self.loop.call_soon(self._feed)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()
        self._feed()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_deadline = self.loop.call_later(self._timeouts.receive_s, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_reader()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when what it reads is not HTTP."""
        self.refuse(HttpError(400, f"{msg[:1].lower()}{msg[1:].rstrip('.')}: this port speaks HTTP/1.1"))

    def refuse(self, error: HttpError) -> None:
        """Answer with an error, if no answer has begun, and close.

        Effects: the request in progress, if any, ends as if its client had left. Further bytes are not read.
        """
        has_answered = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if has_answered or self.transport.is_closing():
            self.transport.close()
        else:
            self._is_refused = True
            if self.cycle is not None and not self.cycle.response_complete:
                request: dict[str, Any] = self.cycle.scope  # type: ignore[assignment]  # a TypedDict has no keys of ours
                request[REFUSED_AS] = error.status  # the application counts it
            else:
                self._note_refusal(self.client[0] if self.client else "", error)
            self.flow.resume_reading()
            response = error.response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
            try:
                self.transport.write_eof()
            except OSError:  # the client has left meanwhile
                self.abort()
        self._follow()

    def abort(self) -> None:
        """Close at once, whatever was not sent yet."""
        self.transport.abort()

    def _follow(self) -> None:
        """Wait for what the connection's state asks for."""
        self._enter(self._phase_now())
        if self._phase is Phase.ANSWER and self.flow.read_paused:
            self.flow.resume_reading()  # the client's end is news, even if its next request is not

    def _phase_now(self) -> Phase:
        if self._is_refused or self.transport.is_closing():
            return Phase.CLOSING
        ours, theirs = self.conn.our_state, self.conn.their_state
        if theirs is h11.IDLE:
            return Phase.HEAD if self.conn.trailing_data[0] else Phase.IDLE
        if theirs is h11.SEND_BODY:
            return Phase.BODY
        return Phase.ANSWER if ours is not h11.DONE else Phase.IDLE

    def _enter(self, phase: Phase) -> None:
        """Effects: starts the deadline of a phase that begins. Bytes within a phase do not extend it."""
        if phase is self._phase:
            return
        self._phase = phase
        self._table.set_idle(self, phase in (Phase.IDLE, Phase.HEAD, Phase.CLOSING))
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase is Phase.IDLE:
            self._deadline = self.loop.call_later(self._timeouts.idle_s, self._expire)
        elif phase is Phase.CLOSING and self._is_refused:
            self._deadline = self.loop.call_later(LINGER_S, self._expire)
        elif phase in (Phase.HEAD, Phase.BODY, Phase.CLOSING):
            self._deadline = self.loop.call_later(self._timeouts.receive_s, self._expire)

    def _expire(self) -> None:
        what = {Phase.HEAD: "head of the request", Phase.BODY: "body of the request"}.get(self._phase)
        if what is not None:
            self.refuse(HttpError(408, f"the {what} did not arrive within {self._timeouts.receive_s:g} s"))
        elif self._phase is Phase.CLOSING or self.transport.get_write_buffer_size():
            self.abort()
        else:
            self.transport.close()
            self._follow()

    def _stop_waiting_for_reader(self) -> None:
        if self._unread_deadline is not None:
            self._unread_deadline.cancel()
            self._unread_deadline = None
