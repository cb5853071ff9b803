"""One wait for all sockets of a thread: whatever arrives first ends it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import zmq

from starspec.wire.transports.sockets import Socket


class Waiting:
    """What one thread waits for. Its transports add their sockets; whoever has nothing to do waits for all of them."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[Socket]]] = []

    def add(self, sockets: Callable[[], Iterable[Socket]]) -> None:
        """Args: sockets: returns those that are open now."""
        self._sources.append(sockets)

    def wait(self, timeout_s: float) -> None:
        """Wait until something can be read from any of the sockets, at most `timeout_s`."""
        poller = zmq.Poller()
        for source in self._sources:
            for socket in source():
                poller.register(socket, zmq.POLLIN)
        poller.poll(max(0, math.ceil(timeout_s * 1000)))
