"""What the hub's thread and its I/O thread share. Neither ever waits for the other."""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from starspec.ids import LinkId
from starspec.wire.transports.base import Arrival, HubTransportStats, Left

MAX_REPLIES: Final = 65536  # handed over and not yet sent


class Outgoing(NamedTuple):
    """Frames for one target, which travel together."""

    link_id: LinkId
    frames: list[bytes]
    put_s: float  # when the hub handed them over


class Exchange:
    """Queues, a wake-up, and counts that one side writes and the other reads."""

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

    def put_replies(self, frames: Mapping[LinkId, list[bytes]]) -> None:
        """Hub's side: leave what is to be sent, and ring once. Dropped, and counted, beyond MAX_REPLIES."""
        now = time.monotonic()
        for link_id, theirs in frames.items():
            if len(self.replies) >= MAX_REPLIES:
                self._stats.num_dropped += len(theirs)
            else:
                self.replies.append(Outgoing(link_id, theirs, now))
        self._wake_up()

    def count_taken(self, arrivals: Sequence[Arrival]) -> None:
        """Hub's side: these have left the queue."""
        for arrival in arrivals:
            if isinstance(arrival.message, Left):
                self.num_taken.pop(arrival.link_id, None)
            else:
                self.num_taken[arrival.link_id] = self.num_taken.get(arrival.link_id, 0) + 1

    def stop(self) -> None:
        """Hub's side: the I/O thread is to end."""
        self.is_stopping = True
        self._is_awake = False
        self._wake_up()

    def doze(self) -> None:
        """I/O side: take back the wake-up. A reply put before this is seen now; a later one rings again."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(64)
        self._is_awake = False

    def close(self) -> None:
        """I/O side: nobody listens any more."""
        self.wake.close()
        self._alarm.close()

    def _wake_up(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            with contextlib.suppress(OSError):  # full: it is awake; closed: nobody is there
                self._alarm.send(b"!")
