"""The hub's end of the draft link over ZeroMQ.

Receiving, drafting and sending are decoupled (StarSD section 4.1, appendix E.3). One thread owns every socket. The
hub's own thread takes arrivals from one queue and puts replies into another. Neither thread waits for the other.

      targets ──> sockets ──> [I/O thread] ──> arrivals ──> receive()  ┐
                                                                       │ the hub's thread
      targets <── sockets <── [I/O thread] <── replies  <── send()     ┘
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import zmq

from starspec.audit import AuditLog
from starspec.errors import LinkError, OurBug
from starspec.ids import LinkId
from starspec.tracing import Tracer
from starspec.wire.callers import Callers, Doorkeeper
from starspec.wire.codec import MAX_FRAME_BYTES, MAX_PUBLIC_FRAME_BYTES, encode
from starspec.wire.keys import Keys, require_keys
from starspec.wire.messages import HubToTarget, Proposal
from starspec.wire.transports.base import Admit, Arrival, HubTransportStats, Report
from starspec.wire.transports.hub_io import HubIoLoop, HubQueues, Outgoing
from starspec.wire.transports.public_port import Ports, PublicPort

CLOSE_S: Final = 5.0


class ZmqHub:
    """Implements HubTransport. Listening has begun when the constructor returns.

    Args:
        host: interface to listen on.
        port: public port, 0 = any free one; see the attribute `port`.
        admit: answers a Hello; called on the I/O thread.
        report: answers an Ask; called on the I/O thread.
        data_ports: inclusive range of the targets' own ports; None = any free ones.
        keys: of role "hub".
        is_insecure: allow a host that is not loopback without keys.
        audit: gets connects, opens and refusals, if given.
        trace: records how long messages wait between the two threads, if given.
        max_len: the tokens of an Open that has more of them are not decoded: it arrives as a `LongOpen`.
        clock: seconds, monotonic.
    Raises: ConfigError if it cannot or must not listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        admit: Admit,
        report: Report,
        *,
        data_ports: tuple[int, int] | None = None,
        keys: Keys | None = None,
        is_insecure: bool = False,
        audit: AuditLog | None = None,
        trace: Tracer | None = None,
        max_len: int = MAX_FRAME_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_keys(host, keys, is_insecure, "the hub would listen on")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))  # a target takes three
        self.stats = HubTransportStats()
        self._trace = trace
        self._clock = clock
        audit = audit or AuditLog.off()
        try:
            callers = None if keys is None else Callers(keys, clock)
            doorkeeper = Doorkeeper(self._context, callers, audit, clock)
            ports = Ports(self._context, host, keys, data_ports)
            public, self.port = ports.open(port, MAX_PUBLIC_FRAME_BYTES)
        except BaseException:
            self._context.term()
            raise
        self._arrivals: queue.SimpleQueue[list[Arrival] | None] = queue.SimpleQueue()
        self._ahead: list[Arrival] = []  # from `receive_ahead`, not handled yet
        self._queues = HubQueues(self._arrivals, self.stats)
        public_port = PublicPort(public, ports, admit, report, self.stats, callers, doorkeeper, audit, max_len, clock)
        self._thread = threading.Thread(target=self._run, args=(public_port,), name="starspec-hub-io", daemon=True)
        self._thread.start()

    def receive(self, timeout_s: float) -> list[Arrival]:
        """As HubTransport. Raises: OurBug if the I/O thread has died."""
        arrivals = self._take(timeout_s)
        if arrivals or self._ahead:
            self._queues.count_taken([*self._ahead, *arrivals])
            self._ahead.clear()
        return arrivals

    def receive_ahead(self) -> list[Arrival]:
        """As HubTransport. Raises: as `receive`."""
        arrivals = self._take(0.0)
        self._ahead += arrivals
        return arrivals

    def send(self, replies: Mapping[LinkId, Sequence[HubToTarget]]) -> None:
        """As HubTransport; callable from any thread. A message too large for a frame is dropped and counted."""
        now = self._clock()
        outgoing = [self._encode(link_id, messages, now) for link_id, messages in replies.items() if messages]
        if outgoing:
            self._queues.put_replies(outgoing)

    def _encode(self, link_id: LinkId, messages: Sequence[HubToTarget], now: float) -> Outgoing:
        frames, num_drafts = [], 0
        for message in messages:
            try:
                frames.append(encode(message))
            except LinkError:
                self.stats.num_dropped += 1
            else:
                num_drafts += isinstance(message, Proposal) and bool(message.token_ids)  # it will have a verdict
        return Outgoing(link_id, frames, num_drafts, now)

    def close(self) -> None:
        self._queues.stop()
        self._thread.join(CLOSE_S)

    def _take(self, timeout_s: float) -> list[Arrival]:
        arrivals: list[Arrival] = []
        if timeout_s <= 0 and self._arrivals.empty():  # the most common case between two draft steps
            return arrivals
        try:
            batch = self._arrivals.get(timeout_s > 0, timeout_s if timeout_s > 0 else None)
            while True:
                if batch is None:
                    self._arrivals.put(None)
                    failure = self._queues.failure
                    raise OurBug(f"the hub's I/O thread has died: {failure!r}") from failure
                arrivals += batch
                batch = self._arrivals.get_nowait()
        except queue.Empty:
            pass
        if self._trace:
            self._trace_waits(arrivals, self._trace)
        return arrivals

    def _trace_waits(self, arrivals: Sequence[Arrival], trace: Tracer) -> None:
        now = self._clock()
        for arrival in arrivals:
            name = type(arrival.message).__name__
            trace.slice("wire", name, arrival.arrived_at, now, link=arrival.link_id)

    def _run(self, public_port: PublicPort) -> None:
        """The I/O thread. If it dies, `receive` raises the reason on the hub's thread."""
        loop = HubIoLoop(public_port, self._queues, self.stats, self._clock, self._trace)
        try:
            loop.run()
        except BaseException as error:
            self._queues.failure = error
            self._arrivals.put(None)
        finally:
            loop.close()
            self._context.term()
