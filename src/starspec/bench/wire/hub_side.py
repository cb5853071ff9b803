"""When requests came to a hub and when their proposals left it: the hub's transport, with a note of both."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import chain

from starspec.bench.wire.clock import Interval
from starspec.ids import LinkId
from starspec.wire.messages import HubToTarget, Proposal, Verdict
from starspec.wire.transports.base import Arrival, HubTransport, HubTransportStats


class RequestLog:
    """Every request that a verdict made, from when its bytes were read until those of its proposal were written.

    Wraps the hub's transport, and is the `Tracer` of that transport: the replies to one target are written in the
    order in which the hub handed them over. What `Open` asks for is not noted: its answer includes the prompt.

    While the hub works things are written down as they come; what belongs together is found out afterwards.
    """

    def __init__(self) -> None:
        self._arrivals: list[Sequence[Arrival]] = []
        self._replies: list[Mapping[LinkId, Sequence[HubToTarget]]] = []
        self._written: list[tuple[LinkId, float]] = []  # seconds

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:  # noqa: ARG002 (as Tracer)
        """As Tracer: a slice named "reply" ends when the reply was written."""
        if name == "reply":
            self._written.append((LinkId(str(args["link"])), end_s))

    def note_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """The hub takes these."""
        self._arrivals.append(arrivals)

    def note_replies(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        """The hub hands these over, those of a link to be written together."""
        self._replies.append(replies)

    @property
    def requests(self) -> list[Interval]:
        """In order of their ends."""
        asked_s = {
            (arrival.link_id, arrival.message.tag, arrival.message.epoch): arrival.arrived_at
            for arrival in chain.from_iterable(self._arrivals)
            if isinstance(arrival.message, Verdict) and arrival.message.num_draft_tokens
        }
        leaving: defaultdict[LinkId, deque[Sequence[HubToTarget]]] = defaultdict(deque)
        for link_id, messages in chain.from_iterable(replies.items() for replies in self._replies):
            leaving[link_id].append(messages)
        requests = []
        for link_id, written_s in self._written:
            for each in leaving[link_id].popleft():
                if isinstance(each, Proposal) and (link_id, each.tag, each.epoch) in asked_s:
                    requests.append(Interval(asked_s[link_id, each.tag, each.epoch], written_s))
        return requests


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

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        self._log.note_replies(replies)
        self._transport.send(replies)

    def close(self) -> None:
        self._transport.close()
