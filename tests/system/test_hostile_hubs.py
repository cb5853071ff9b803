"""Hostile hubs over real sockets: the target breaks their links, and is not held up. `tests/engine` has all kinds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from starspec.ids import LinkId, TargetId
from starspec.wire.codec import encode
from starspec.wire.messages import PROTOCOL_VERSION, Fault, Hello, Ping, Pong, Proposal, Welcome
from starspec.wire.transports.zmq_target import ZmqTarget

pytestmark = pytest.mark.system
PATIENCE_S = 30.0  # of a test; nothing waits this long unless it fails
LOST = "is gone"  # the problem of a target whose link ended and that cannot tell why
Spam = Callable[[], list[bytes]]


class Clock:
    """The monotonic clock, until it is stopped: however slow the machine is, no pause ends then."""

    def __init__(self) -> None:
        self._stopped_s: float | None = None

    def __call__(self) -> float:
        return time.monotonic() if self._stopped_s is None else self._stopped_s

    def stop(self) -> None:
        self._stopped_s = time.monotonic()


class HostileHub(threading.Thread):
    """Completes each handshake, and then sends the same all the time, as fast as the socket takes it."""

    def __init__(self, spam: Spam) -> None:
        super().__init__(daemon=True)
        self._spam = spam
        self._context = zmq.Context()
        self._public, self.port = self._listen()
        self._own, self._own_port = self._listen()
        self._peers: set[bytes] = set()
        self._is_stopping = threading.Event()
        self.num_links = 0

    def run(self) -> None:
        try:
            while not self._is_stopping.is_set():
                with contextlib.suppress(zmq.ZMQError):  # the target is gone
                    self._answer()
                for peer in list(self._peers):
                    self._flood(peer)
        finally:
            self._context.destroy(linger=0)

    def _flood(self, peer: bytes) -> None:
        try:
            self._own.send_multipart([peer, *self._spam()], zmq.NOBLOCK)
        except zmq.Again:
            time.sleep(0.001)  # it does not read so fast
        except zmq.ZMQError:
            self._peers.discard(peer)

    def stop(self) -> None:
        self._is_stopping.set()
        self.join()

    def _listen(self) -> tuple[zmq.Socket[bytes], int]:
        socket = self._context.socket(zmq.ROUTER)
        socket.router_mandatory = 1
        return socket, socket.bind_to_random_port("tcp://127.0.0.1")

    def _answer(self) -> None:
        if self._public.poll(0 if self._peers else 5):
            peer, _ = self._public.recv_multipart()
            self.num_links += 1
            link_id = LinkId(f"l{self.num_links}")
            welcome = Welcome(PROTOCOL_VERSION, link_id, self._own_port, "hostile", 4, 10.0)
            self._public.send_multipart([peer, encode(welcome)])
        if self._own.poll(0):
            peer, *_ = self._own.recv_multipart()
            if peer not in self._peers:
                self._own.send_multipart([peer, encode(Pong(0))])
                self._peers.add(peer)


KINDS: dict[str, tuple[Spam, str]] = {
    "pongs": (lambda: [encode(Pong(3))], "more than it was asked for"),
    "faults": (lambda: [encode(Fault("\x1b[2J" * 500))] * 50, "more than it was asked for"),
    "pings": (lambda: [encode(Ping(3))], "again and again"),
    "garbage": (lambda: [b"\xc1" * 500], "again and again"),
    "huge proposals": (lambda: [encode(Proposal(1, 1, 1, [7] * 300_000))], LOST),  # type: ignore[arg-type]
    "a multipart without end": (lambda: [b"x"] * 5000, "more than it was asked for"),
}


@pytest.fixture(params=KINDS)
def hostile(request: pytest.FixtureRequest) -> Iterator[tuple[HostileHub, str]]:
    spam, problem = KINDS[request.param]
    hub = HostileHub(spam)
    hub.start()
    try:
        yield hub, problem
    finally:
        hub.stop()


def test_a_hub_that_floods_a_target_loses_its_link(hostile: tuple[HostileHub, str]) -> None:
    hub, problem = hostile
    hello = Hello(PROTOCOL_VERSION, TargetId("t"), 100, "f")
    clock = Clock()
    target = ZmqTarget(f"tcp://127.0.0.1:{hub.port}", hello, clock=clock)
    try:
        until(lambda: problem in target.problem, target)
        assert not target.is_connected
        assert target.problem.isprintable()
        clock.stop()
        for _ in range(100):
            assert target.receive(0.0) == []
        # A target tries again at once after its first loss, which may be an accident, and never after a breach.
        assert target.num_connects <= (2 if problem == LOST else 1)
    finally:
        target.close()


def until(condition: Callable[[], bool], target: ZmqTarget) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, target.problem
        target.receive(0.01)
        time.sleep(0.001)  # whoever wants the turn gets it
