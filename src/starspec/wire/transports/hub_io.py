"""The hub's I/O thread, which owns every socket, and the queues that it shares with the hub's own thread.

Neither thread ever waits for the other.
"""

from __future__ import annotations

import contextlib
import queue
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import zmq

from starspec.ids import LinkId
from starspec.policy.peer_limits import has_caught_up, should_pause
from starspec.tracing import Tracer
from starspec.wire.codec import encode
from starspec.wire.messages import Goodbye
from starspec.wire.transports.base import Arrival, HubTransportStats, Left
from starspec.wire.transports.hub_link import HubLink
from starspec.wire.transports.public_port import PublicPort
from starspec.wire.transports.sockets import GOODBYE_MS

TICK_S: Final = 0.05  # between looks at leases and broken connections
STALL_S: Final = 1.0  # a longer gap between two turns means that this process was suspended
MAX_REPLIES: Final = 65536  # handed over by the hub's thread and not yet sent


class Outgoing(NamedTuple):
    """Frames for one target that travel together."""

    link_id: LinkId
    frames: list[bytes]
    num_drafts: int  # how many of them are proposals with draft tokens
    put_s: float  # when the hub handed them over


class HubQueues:
    """The queues between the hub's thread and the I/O thread. One side writes each field and the other reads it."""

    def __init__(self, arrivals: queue.SimpleQueue[list[Arrival] | None], stats: HubTransportStats) -> None:
        self.arrivals = arrivals
        self.replies: deque[Outgoing] = deque()
        self.num_taken: dict[LinkId, int] = {}  # written by the hub's thread
        self.is_stopping = False
        self.failure: BaseException | None = None
        self._stats = stats
        self._is_awake = False
        self.wake, self._alarm = socket.socketpair()
        self.wake.setblocking(False)
        self._alarm.setblocking(False)

    def put_replies(self, replies: Sequence[Outgoing]) -> None:
        """Hub's side: queue replies and wake the I/O thread. Replies beyond MAX_REPLIES are dropped and counted."""
        num_taken = max(0, MAX_REPLIES - len(self.replies))
        self.replies += replies[:num_taken]
        self._stats.num_dropped += sum(len(each.frames) for each in replies[num_taken:])
        self._wake_up()

    def count_taken(self, arrivals: Sequence[Arrival]) -> None:
        """Hub's side: these arrivals have left the queue."""
        for arrival in arrivals:
            if isinstance(arrival.message, Left):
                self.num_taken.pop(arrival.link_id, None)
            else:
                self.num_taken[arrival.link_id] = self.num_taken.get(arrival.link_id, 0) + arrival.backlog

    def stop(self) -> None:
        """Hub's side: tell the I/O thread to end."""
        self.is_stopping = True
        self._is_awake = False
        self._wake_up()

    def reset_wake_up(self) -> None:
        """I/O side: clear the wake-up. Replies queued before are seen now; later ones wake the thread again."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(64)
        self._is_awake = False

    def close(self) -> None:
        """I/O side: close the wake-up sockets."""
        self.wake.close()
        self._alarm.close()

    def _wake_up(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(OSError):  # full: the thread is awake already; closed: it has ended
                self._alarm.send(b"!")


class HubIoLoop:
    """The I/O thread's loop, between the sockets and the queues. Only the queues are shared with the other thread."""

    def __init__(
        self,
        public_port: PublicPort,
        queues: HubQueues,
        stats: HubTransportStats,
        clock: Callable[[], float],
        trace: Tracer | None,
    ) -> None:
        self._public_port = public_port
        self._queues = queues
        self._stats = stats
        self._clock = clock
        self._trace = trace
        self._links: dict[LinkId, HubLink] = {}
        self._by_socket: dict[object, HubLink] = {}
        self._paused: set[HubLink] = set()
        self._poller = zmq.Poller()
        self._poller.register(public_port.socket, zmq.POLLIN)
        self._poller.register(queues.wake, zmq.POLLIN)
        self._last_turn_at = self._checked_at = self._clock()

    def run(self) -> None:
        """Run until told to stop; then send Goodbye to all targets."""
        while not self._queues.is_stopping:
            self._turn(dict(self._poller.poll(int(TICK_S * 1000))))
        farewell = [encode(Goodbye("the hub is closing"))]
        self._send_replies()
        for link in self._links.values():
            link.write(farewell, 0, self._clock())

    def close(self) -> None:
        """Close every socket."""
        for link in self._links.values():
            link.close(GOODBYE_MS)
        self._public_port.close()
        self._queues.close()

    def _turn(self, events: dict[object, int]) -> None:
        now = self._clock()
        if now - self._last_turn_at > STALL_S:
            for link in self._links.values():
                link.extend(now - self._last_turn_at)
        self._last_turn_at = now
        if self._queues.wake.fileno() in events:
            self._queues.reset_wake_up()
            self._send_replies()
        arrivals: list[Arrival] = []
        for source in events:
            if source in self._by_socket:
                arrivals += self._by_socket[source].read(now)
                self._pause_if_ahead(self._by_socket[source])
        if self._public_port.socket in events:
            self._welcome(now)
        if now - self._checked_at >= TICK_S:
            self._check(now)
            self._checked_at = now
        arrivals += self._close_ended_links(now)
        if arrivals:
            self._queues.arrivals.put(arrivals)

    def _send_replies(self) -> None:
        replies, now = self._queues.replies, self._clock()
        while replies:
            reply = replies.popleft()
            link = self._links.get(reply.link_id)
            if link is None or not link.write(reply.frames, reply.num_drafts, now):
                self._stats.num_dropped += len(reply.frames)
            elif self._trace:
                self._trace.slice("wire", "reply", reply.put_s, self._clock(), link=reply.link_id)

    def _welcome(self, now: float) -> None:
        for link in self._public_port.read(self._links.values(), now):
            self._links[link.link_id] = self._by_socket[link.socket] = link
            self._poller.register(link.socket, zmq.POLLIN)

    def _check(self, now: float) -> None:
        self._public_port.check(self._links.values())
        for link in self._paused:
            link.extend(now - self._checked_at)  # it may have said something that is not read
        for link in self._links.values():
            link.check(now)
            link.share_work(len(self._links))
        for link in list(self._paused):
            if has_caught_up(self._backlog(link)) and link.resume(now):
                self._paused.discard(link)
                self._poller.register(link.socket, zmq.POLLIN)

    def _close_ended_links(self, now: float) -> list[Arrival]:
        """Close the links that are over. Returns: their last arrivals, for links that the hub knows."""
        ended = [link for link in self._links.values() if link.left is not None]
        for link in ended:
            del self._links[link.link_id], self._by_socket[link.socket]
            if link in self._paused:
                self._paused.discard(link)
            else:
                self._poller.unregister(link.socket)
            link.close()
        return [link.last_arrival(now) for link in ended if link.has_joined]

    def _pause_if_ahead(self, link: HubLink) -> None:
        """Stop reading a target that sends faster than the hub takes, or more than its share of what all may send."""
        if should_pause(self._backlog(link), has_sent_too_much=link.has_sent_too_much):
            self._poller.unregister(link.socket)
            self._paused.add(link)

    def _backlog(self, link: HubLink) -> int:
        return link.num_queued - self._queues.num_taken.get(link.link_id, 0)
