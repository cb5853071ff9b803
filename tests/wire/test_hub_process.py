"""A hub that is killed, stopped or started again, as a target sees it."""

from __future__ import annotations

import signal
import time

import pytest

from starspec.wire.messages import Ping, Pong

pytestmark = pytest.mark.system


def test_a_killed_hub_is_noticed_at_once_and_found_again_when_it_returns(star) -> None:
    hub = star.hub_process()
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


def test_a_stopped_hub_is_noticed_by_its_silence_and_found_again_when_it_goes_on(star) -> None:
    hub = star.hub_process()
    target = star.connected(hub.endpoint)
    hub.signal(signal.SIGSTOP)
    assert star.until(lambda: not target.is_connected, target) < 4.0
    hub.signal(signal.SIGCONT)
    assert star.until(lambda: target.is_connected, target) < 5.0
    target.send([Ping(1)])
    assert target.receive(5.0) == [Pong(1)]


def test_a_target_that_starts_before_its_hub_finds_it(star) -> None:
    hub = star.hub_process()
    hub.kill()
    target = star.target(hub.endpoint)
    target.receive(0.0)
    assert target.problem == f"no hub has answered yet at {hub.endpoint}"
    hub.start()
    assert star.until(lambda: target.is_connected, target) < 5.0
