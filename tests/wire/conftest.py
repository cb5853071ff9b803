"""Real hubs and targets over loopback, and ends that speak by hand where an honest one would not do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from starspec.errors import OurBug
from starspec.ids import LinkId, TargetId
from starspec.stats import HubStats
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Hello,
    HubPublicReply,
    HubStatus,
    HubToTarget,
    Message,
    Ping,
    Pong,
    Refused,
    Welcome,
)
from starspec.wire.transports.base import Arrival, Joined, Left
from starspec.wire.transports.zmq_hub import ZmqHub
from starspec.wire.transports.zmq_target import ZmqTarget

sys.path.insert(0, str(Path(__file__).parent))  # for `hand_made`

HUB = """
import sys

import structlog

from starspec.policy import newcomers
from starspec.stats import HubStats
from starspec.wire.messages import PROTOCOL_VERSION, HubStatus, Welcome
from starspec.wire.transports import hub_link, public_port
from starspec.wire.transports.zmq_hub import ZmqHub

def report():
    return HubStatus("d", HubStats(num_frames_rejected=hub.stats.num_frames_rejected))

if "open" in sys.argv:
    newcomers.DOOR_PER_S = newcomers.DOOR_BURST = 1e9
    newcomers.SHUT_S = 0.0
    hub_link.STRANGE_PER_S = public_port.ASKS_PER_S = hub_link.STRANGE_BURST = public_port.ASKS_BURST = 1e9
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # of stdout, only the port is read
hub = ZmqHub("127.0.0.1", int(sys.argv[1]), lambda hello, num: Welcome(PROTOCOL_VERSION, "", 0, "d", 4, 10.0), report)
sys.stdout.write(f"{hub.port}\\n")
sys.stdout.flush()
while True:
    hub.receive(1.0)  # the transport answers pings by itself
"""
PATIENCE_S = 20.0  # of a test; nothing waits this long unless it fails


def hello(name: str = "t") -> Hello:
    return Hello(PROTOCOL_VERSION, TargetId(name), 100, "f")


class EchoHub:
    """A hub with a thread of its own that remembers what it heard. Its transport answers each Ping."""

    def __init__(self, port: int = 0, max_targets: int = 4, lease_s: float = 10.0, **options: object) -> None:
        terms = Welcome(PROTOCOL_VERSION, LinkId(""), 0, "echo", 16, lease_s)

        def admit(hello: Hello, num_sequences: int) -> Welcome | Refused:
            return terms if num_sequences < max_targets else Refused("full", "no place", 0.1)

        self.status = HubStatus("echo", HubStats())
        self.transport = ZmqHub("127.0.0.1", port, admit, lambda: self.status, **options)
        self.heard: list[Arrival] = []
        self._is_stopping = False
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.transport.port}"

    def messages_of(self, name: str) -> list[object]:
        return [each.message for each in list(self.heard) if each.target_id == name]

    def events_of(self, name: str) -> list[object]:
        return [each for each in self.messages_of(name) if isinstance(each, Joined | Left)]

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """It takes nothing from its transport meanwhile."""
        with self._turn:
            yield

    def close(self) -> None:
        self._is_stopping = True
        self._thread.join()
        self.transport.close()

    def _run(self) -> None:
        while not self._is_stopping:
            with self._turn, contextlib.suppress(OurBug):
                self.heard += self.transport.receive(0.02)
            time.sleep(0.001)  # whoever wants the turn gets it


class HubProcess:
    """A hub that only listens, in a process of its own, always on the same port.

    Args:
        is_open: its door stays open, and connections go on, however often they send.
    """

    def __init__(self, is_open: bool = False) -> None:
        self.port = 0
        self._is_open = is_open
        self.start()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-c", HUB, str(self.port), "open" if self._is_open else "guarded"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class RawTarget:
    """A target that speaks by hand: any frames, under any identity, to any port."""

    def __init__(self, endpoint: str, identity: bytes | None = None) -> None:
        self.context = zmq.Context()
        self.endpoint = endpoint
        self.socket = self._connect(endpoint, identity)

    def greet(self, message: Message | None = None) -> object:
        return self.ask(self.socket, [encode(message or hello("raw"))])

    def attach(self, message: Hello | None = None) -> Welcome:
        """Go through the handshake. Effects: `socket` then leads to this target's own port."""
        welcome = self.greet(message)
        assert isinstance(welcome, Welcome), welcome
        self.come_to(welcome)
        assert self.ask(self.socket, [encode(Ping(0))], HubToTarget) == Pong(0)
        return welcome

    def come_to(self, welcome: Welcome) -> None:
        """Connect to one's own port. Effects: as `attach`."""
        self.socket.close()
        host = self.endpoint.rsplit(":", 1)[0]
        self.socket = self._connect(f"{host}:{welcome.port}", welcome.link_id.encode())

    def ask(self, socket: zmq.Socket, frames: list[bytes], union: object = HubPublicReply) -> object:
        socket.send_multipart(frames)
        assert socket.poll(int(PATIENCE_S * 1000)), "no answer"
        return Decoder(union).decode(socket.recv())

    def close(self) -> None:
        self.context.destroy(linger=0)

    def _connect(self, endpoint: str, identity: bytes | None) -> zmq.Socket:
        socket = self.context.socket(zmq.DEALER)
        if identity is not None:
            socket.routing_id = identity
            socket.reconnect_ivl = 3_600_000  # never, as long as a test lives
            socket.immediate = True  # a cut connection then shows: nothing can be sent any more
        socket.connect(endpoint)
        return socket


class Star:
    """Makes ends of the link and closes them all."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def hub(self, **options: object) -> EchoHub:
        hub = EchoHub(**options)
        self._stack.callback(hub.close)
        return hub

    def hub_process(self, is_open: bool = False) -> HubProcess:
        hub = HubProcess(is_open)
        self._stack.callback(hub.kill)
        return hub

    def target(self, endpoint: str, name: str = "t", **options: object) -> ZmqTarget:
        target = ZmqTarget(endpoint, hello(name), **options)
        self._stack.callback(target.close)
        return target

    def connected(self, endpoint: str, name: str = "t", **options: object) -> ZmqTarget:
        target = self.target(endpoint, name, **options)
        self.until(lambda: target.is_connected, target)
        return target

    def raw(self, endpoint: str, identity: bytes | None = None) -> RawTarget:
        raw = RawTarget(endpoint, identity)
        self._stack.callback(raw.close)
        return raw

    def until(self, condition: Callable[[], object], *targets: ZmqTarget, timeout_s: float = PATIENCE_S) -> float:
        """Let the targets drive their connections until the condition holds. Returns: seconds it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < timeout_s, "the condition never held"
            time.sleep(0.001)  # whoever wants the turn gets it
            for target in targets:
                target.receive(0.0)
        return time.monotonic() - began

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def star() -> Iterator[Star]:
    star = Star()
    try:
        yield star
    finally:
        star.close()
