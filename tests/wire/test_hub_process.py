"""A hub that is killed, stopped or started again, as a target sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from starspec.wire.messages import Ping, Pong

pytestmark = pytest.mark.system

HUB = """
import sys
from starspec.wire.messages import Welcome
from starspec.wire.zmq_hub import ZmqHub

hub = ZmqHub("127.0.0.1", int(sys.argv[1]), lambda hello, num: Welcome(1, "", 0, "d", 4, 10.0), lambda: None)
sys.stdout.write(f"{hub.port}\\n")
sys.stdout.flush()
while True:
    hub.receive(1.0)  # the transport answers pings by itself
"""


class HubProcess:
    """A hub that only listens, in a process of its own, always on the same port."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-c", HUB, str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hub() -> Iterator[HubProcess]:
    hub = HubProcess()
    try:
        yield hub
    finally:
        hub.kill()


def test_a_killed_hub_is_noticed_at_once_and_found_again_when_it_returns(star, hub: HubProcess) -> None:
    target = star.connected(hub.endpoint)
    hub.kill()
    began = time.monotonic()
    assert target.receive(30.0) == []  # returns early: there is nobody to wait for
    assert not target.is_connected
    assert time.monotonic() - began < 0.25
    hub.start()
    assert star.until(lambda: target.is_connected, target) < 5.0
    target.send([Ping(1)])
    assert target.receive(5.0) == [Pong(1)]
    assert target.num_connects == 2


def test_a_stopped_hub_is_noticed_by_its_silence_and_found_again_when_it_goes_on(star, hub: HubProcess) -> None:
    target = star.connected(hub.endpoint)
    hub.signal(signal.SIGSTOP)
    assert star.until(lambda: not target.is_connected, target) < 4.0
    hub.signal(signal.SIGCONT)
    assert star.until(lambda: target.is_connected, target) < 5.0
    target.send([Ping(1)])
    assert target.receive(5.0) == [Pong(1)]


def test_a_target_that_starts_before_its_hub_finds_it(star, hub: HubProcess) -> None:
    hub.kill()
    target = star.target(hub.endpoint)
    target.receive(0.0)
    assert target.problem == f"no hub has answered yet at {hub.endpoint}"
    hub.start()
    assert star.until(lambda: target.is_connected, target) < 5.0
