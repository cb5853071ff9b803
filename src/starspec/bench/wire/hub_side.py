"""When requests came to a hub and when their proposals left it: the hub's transport, with a note of both."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

from starspec.bench.wire.clock import Interval
from starspec.ids import SessionId, Tag
from starspec.wire.messages import HubToTarget, Proposal, Verdict
from starspec.wire.transport import Arrival, HubTransport, HubTransportStats


class RequestLog:
    """Every request that a verdict made, from when its bytes were read until those of its proposal were written.

    Wraps the hub's transport, and is the `Tracer` of that transport: the replies to one target are written in the
    order in which the hub handed them over. What `Open` asks for is not noted: its answer includes the prompt.
    """

    def __init__(self) -> None:
        self.requests: list[Interval] = []
        self._asked: dict[tuple[SessionId, Tag, int], float] = {}
        self._leaving: defaultdict[SessionId, deque[list[float]]] = defaultdict(deque)

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:  # noqa: ARG002 (as Tracer)
        """As Tracer: a slice named "reply" ends when the reply was written."""
        if name == "reply":
            self.requests += [
                Interval(asked_s, end_s) for asked_s in self._leaving[SessionId(str(args["session"]))].popleft()
            ]

    def note_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """The hub takes these."""
        for arrival in arrivals:
            message = arrival.message
            if isinstance(message, Verdict) and message.num_draft_tokens:
                self._asked[arrival.session_id, message.tag, message.epoch] = arrival.arrived_at

    def note_reply(self, session_id: SessionId, messages: Sequence[HubToTarget]) -> None:
        """The hub hands these over, to be written together."""
        answered = [(session_id, each.tag, each.epoch) for each in messages if isinstance(each, Proposal)]
        self._leaving[session_id].append([self._asked.pop(key) for key in answered if key in self._asked])


class LoggedTransport:
    """A hub's transport, with its log."""

    def __init__(self, transport: HubTransport, log: RequestLog) -> None:
        self._transport = transport
        self._log = log

    @property
    def stats(self) -> HubTransportStats:
        return self._transport.stats

    def receive(self, timeout_s: float) -> list[Arrival]:
        arrivals = self._transport.receive(timeout_s)
        self._log.note_arrivals(arrivals)
        return arrivals

    def send(self, replies: Mapping[SessionId, Sequence[HubToTarget]]) -> None:
        for session_id, messages in replies.items():
            self._log.note_reply(session_id, messages)
        self._transport.send(replies)

    def close(self) -> None:
        self._transport.close()
