"""The hub's I/O thread: it owns every socket, one turn at a time."""

from __future__ import annotations

import time
from typing import Final

import zmq

from starspec.ids import LinkId
from starspec.tracing import Tracer
from starspec.wire.codec import encode
from starspec.wire.messages import Goodbye
from starspec.wire.transports.base import Arrival, HubTransportStats
from starspec.wire.transports.hub_exchange import Exchange
from starspec.wire.transports.hub_link import HubLink
from starspec.wire.transports.public_port import PublicPort
from starspec.wire.transports.sockets import GOODBYE_MS

TICK_S: Final = 0.05  # between looks at leases and broken connections
STALL_S: Final = 1.0  # a longer gap between two turns means that this process stood still
MAX_BACKLOG: Final = 4096  # arrivals of one target that the hub has not taken: beyond it the target is not read


class HubIo:
    """Sockets on one side, an Exchange on the other. Everything but the Exchange belongs to one thread."""

    def __init__(
        self, door: PublicPort, exchange: Exchange, stats: HubTransportStats, trace: Tracer | None = None
    ) -> None:
        self._door = door
        self._exchange = exchange
        self._stats = stats
        self._trace = trace
        self._links: dict[LinkId, HubLink] = {}
        self._at: dict[object, HubLink] = {}  # by socket
        self._paused: set[HubLink] = set()
        self._poller = zmq.Poller()
        self._poller.register(door.socket, zmq.POLLIN)
        self._poller.register(exchange.wake, zmq.POLLIN)
        self._turned_at = self._checked_at = time.monotonic()

    def run(self) -> None:
        """Work until told to stop; then say Goodbye to all."""
        while not self._exchange.is_stopping:
            self._turn(dict(self._poller.poll(int(TICK_S * 1000))))
        farewell = [encode(Goodbye("the hub is closing"))]
        self._send_replies()
        for link in self._links.values():
            link.write(farewell)

    def close(self) -> None:
        """Free every socket."""
        for link in self._links.values():
            link.socket.linger = GOODBYE_MS
            link.close()
        self._door.close()
        self._exchange.close()

    def _turn(self, events: dict[object, int]) -> None:
        now = time.monotonic()
        if now - self._turned_at > STALL_S:
            for link in self._links.values():
                link.extend(now - self._turned_at)
        self._turned_at = now
        if self._exchange.wake.fileno() in events:
            self._exchange.doze()
            self._send_replies()
        arrivals: list[Arrival] = []
        for socket in events:
            if socket in self._at:
                arrivals += self._at[socket].read(now)
                self._pause_if_ahead(self._at[socket])
        if self._door.socket in events:
            self._welcome(now)
        if now - self._checked_at >= TICK_S:
            self._checked_at = now
            self._check(now)
        arrivals += self._part(now)
        if arrivals:
            self._exchange.arrivals.put(arrivals)

    def _send_replies(self) -> None:
        replies = self._exchange.replies
        while replies:
            reply = replies.popleft()
            link = self._links.get(reply.link_id)
            if link is None or not link.write(reply.frames):
                self._stats.num_dropped += len(reply.frames)
            elif self._trace:
                self._trace.slice("wire", "reply", reply.put_s, time.monotonic(), link=reply.link_id)

    def _welcome(self, now: float) -> None:
        for link in self._door.read(self._links.values(), now):
            self._links[link.link_id] = self._at[link.socket] = link
            self._poller.register(link.socket, zmq.POLLIN)

    def _check(self, now: float) -> None:
        for link in self._links.values():
            link.check(now)
        for link in list(self._paused):
            if self._backlog(link) < MAX_BACKLOG // 2:
                self._paused.discard(link)
                self._poller.register(link.socket, zmq.POLLIN)

    def _part(self, now: float) -> list[Arrival]:
        """Close the links that are over. Returns: the last word about those that the hub knows."""
        departed = [link for link in self._links.values() if link.left is not None]
        for link in departed:
            del self._links[link.link_id], self._at[link.socket]
            if link in self._paused:
                self._paused.discard(link)
            else:
                self._poller.unregister(link.socket)
            link.close()
        return [link.departure(now) for link in departed if link.has_joined]

    def _pause_if_ahead(self, link: HubLink) -> None:
        """Leave a target that sends faster than the hub takes to its own socket's limits."""
        if self._backlog(link) >= MAX_BACKLOG:
            self._poller.unregister(link.socket)
            self._paused.add(link)

    def _backlog(self, link: HubLink) -> int:
        return link.num_queued - self._exchange.num_taken.get(link.link_id, 0)
