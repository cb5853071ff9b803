"""One HTTP connection with deadlines.

uvicorn's protocol waits for ever for a request, for its body, and for a client that does not read. This one ends each
of these waits. While an answer is generated, uvicorn also stops reading from a client that has sent its next request
already, and does not notice when this client leaves. Here the early bytes are kept until the answer is finished.

uvicorn parses whatever has arrived at once; 256 KiB of a body in chunks of one byte take it a second. Here the event
loop has a turn after each PIECE_BYTES.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from starspec.gateway.connections import ConnectionTable
from starspec.gateway.http_errors import HttpError
from starspec.gateway.metrics import REFUSED_AS
from starspec.policy.retry_after import NO_CONNECTION_S

PIECE_BYTES: Final = 4 * 1024  # parsed at once; at worst 700 chunks of one byte, or a quarter of the longest head
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_EARLY_BYTES: Final = 64 * 1024  # of next requests, while an answer is generated
REST_S: Final = 5.0  # for the end of a body that nobody wants; the client may read its answer only after it
LINGER_S: Final = 1.0  # between an answer's end and the close: a close with bytes unread would destroy the answer
NO_PLACE: Final = HttpError(503, "the gateway has no connection left: try again", retry_after_s=NO_CONNECTION_S)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a connection waits for its client, in seconds."""

    idle_s: float  # for the first byte of a request
    receive_s: float  # from there to the end of its head; as long for its body; and for a client that does not read


NoteRefusal = Callable[[str, HttpError], None]
"""Called with a client's address when its connection is answered with an error before there is a request."""


class Phase(enum.Enum):
    """What a connection waits for."""

    IDLE = enum.auto()  # the first byte of a request
    HEAD = enum.auto()  # the end of its head
    BODY = enum.auto()  # the end of its body
    REST = enum.auto()  # the end of a body that nobody wants: the answer was sent before, such as a 401
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
        self._has_answered_now = False
        self._awaits_turn = False
        self._feeds_soon = False
        self._lingers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.max_size = PIECE_BYTES  # type: ignore[attr-defined]  # bytes that asyncio reads at once
        if self.client is None:
            self.abort()  # it has left already: nobody gives way to it
        elif self._table.admit(self, self.client[0]):
            self._follow()
        else:
            self.refuse(NO_PLACE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.release(self)
        self._enter(Phase.CLOSED)
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase in (Phase.CLOSING, Phase.CLOSED):
            return
        if self._phase is Phase.BODY:
            self._table.hear(self, len(data))
        self._early += data
        if self._phase is not Phase.ANSWER and not self._awaits_turn:
            self._feed()
        elif len(self._early) > MAX_EARLY_BYTES:
            self.abort()

    def _feed(self) -> None:
        """Parse a piece of what has arrived, and the rest in later turns of the event loop."""
        if self._phase in (Phase.ANSWER, Phase.CLOSING, Phase.CLOSED):
            return
        if self._awaits_turn or self._feeds_soon or not self._early:
            return
        piece, self._early = self._early[:PIECE_BYTES], self._early[PIECE_BYTES:]
        super().data_received(piece)
        self._follow()
        self._feed_soon()

    def _feed_soon(self) -> None:
        if self._early and not self._feeds_soon:
            self._feeds_soon = True
            self.loop.call_soon(self._feed_now)

    def _feed_now(self) -> None:
        self._feeds_soon = False
        self._feed()

    def on_response_complete(self) -> None:
        self._has_answered_now = True
        super().on_response_complete()
        self._has_answered_now = False
        self._follow()
        if self._phase is Phase.REST:
            self._feed()
        elif self.conn.trailing_data[0] or self._early:
            self._awaits_turn = True
            self._table.turns.wait(self._take_turn, self.loop)

    def handle_events(self) -> None:
        if not self._has_answered_now:  # uvicorn would begin the next request at once
            super().handle_events()

    def _take_turn(self) -> None:
        """Begin the request that came early."""
        self._awaits_turn = False
        if self._phase in (Phase.CLOSING, Phase.CLOSED) or self.transport.is_closing():
            return
        self.handle_events()
        self._follow()
        self._feed_soon()

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
            if self.cycle is not None and not self.cycle.response_complete:
                request: dict[str, Any] = self.cycle.scope  # type: ignore[assignment]  # a TypedDict has no keys of ours
                request[REFUSED_AS] = error.status  # the application counts it
            else:
                self._note_refusal(self.client[0] if self.client else "", error)
            response = error.response()
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
            self._end_answer()
        self._follow()

    def _end_answer(self) -> None:
        """Say that nothing more comes. What the client still sends is read, or the system would destroy the answer."""
        self._lingers = True
        self.flow.resume_reading()
        try:
            self.transport.write_eof()
        except OSError:  # the client has left meanwhile
            self.abort()

    def give_way(self) -> None:
        """End, for a newcomer. A client that was sending its request's body is told."""
        if self._phase is Phase.BODY:
            self.refuse(NO_PLACE)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once, whatever was not sent yet."""
        self.transport.abort()

    def _follow(self) -> None:
        """Wait for what the connection's state asks for."""
        self._enter(self._phase_now())
        if self._phase is Phase.ANSWER and self.flow.read_paused:
            self.flow.resume_reading()  # the client's end is news, even if its next request is not

    def _phase_now(self) -> Phase:
        if self._lingers or self.transport.is_closing():
            return Phase.CLOSING
        ours, theirs = self.conn.our_state, self.conn.their_state
        if theirs is h11.IDLE:
            return Phase.HEAD if self.conn.trailing_data[0] else Phase.IDLE
        if theirs is h11.SEND_BODY:
            return Phase.REST if ours is h11.DONE else Phase.BODY
        return Phase.ANSWER if ours is not h11.DONE else Phase.IDLE

    def _enter(self, phase: Phase) -> None:
        """Effects: starts the deadline of a phase that begins. Bytes within a phase do not extend it."""
        if phase is self._phase:
            return
        self._phase = phase
        if phase in (Phase.BODY, Phase.ANSWER, Phase.CLOSED):
            self._table.end_wait(self)  # a body is waited for anew, however long the connection was idle before
        if phase not in (Phase.ANSWER, Phase.CLOSED):
            self._table.begin_wait(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase is Phase.IDLE:
            self._deadline = self.loop.call_later(self._timeouts.idle_s, self._expire)
        elif phase is Phase.CLOSING and self._lingers:
            self._deadline = self.loop.call_later(LINGER_S, self._expire)
        elif phase is Phase.REST:
            self._deadline = self.loop.call_later(min(REST_S, self._timeouts.receive_s), self._expire)
        elif phase in (Phase.HEAD, Phase.BODY, Phase.CLOSING):
            self._deadline = self.loop.call_later(self._timeouts.receive_s, self._expire)

    def _expire(self) -> None:
        what = {Phase.HEAD: "head of the request", Phase.BODY: "body of the request"}.get(self._phase)
        if what is not None:
            self.refuse(HttpError(408, f"the {what} did not arrive within {self._timeouts.receive_s:g} s"))
        elif self._phase is Phase.CLOSING or self.transport.get_write_buffer_size():
            self.abort()
        elif self._phase is Phase.REST:
            self._end_answer()
            self._follow()
        else:
            self.transport.close()
            self._follow()

    def _stop_waiting_for_reader(self) -> None:
        if self._unread_deadline is not None:
            self._unread_deadline.cancel()
            self._unread_deadline = None
