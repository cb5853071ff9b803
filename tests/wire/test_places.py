"""Places at a hub are for targets that complete the handshake, and honest newcomers get in."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from starspec.ids import TargetId
from starspec.log_limit import LINES
from starspec.policy import newcomers
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import PROTOCOL_VERSION, Goodbye, Hello, HubToTarget, Ping, Refused, Welcome

pytestmark = pytest.mark.system


def hello(name: str) -> Hello:
    return Hello(PROTOCOL_VERSION, TargetId(name), 100, "f")


def test_who_only_says_hello_takes_no_place(star) -> None:
    hub = star.hub(max_targets=2)
    for number in range(80):
        assert isinstance(star.raw(hub.endpoint).greet(hello(f"raw-{number}")), Welcome)
    star.connected(hub.endpoint, "honest")
    star.connected(hub.endpoint, "another")
    assert hub.events_of("raw-0") == []


def test_of_two_that_were_welcomed_to_the_last_place_the_first_to_come_gets_it(star) -> None:
    hub = star.hub(max_targets=1)
    slow, quick = star.raw(hub.endpoint), star.raw(hub.endpoint)
    welcome = slow.greet(hello("slow"))
    assert isinstance(welcome, Welcome)
    quick.attach(hello("quick"))
    slow.come_to(welcome)
    slow.socket.send(encode(Ping(0)))
    if slow.socket.poll(2000):  # on a busy machine the port may close first
        assert Decoder(HubToTarget).decode(slow.socket.recv()) == Goodbye("no place is left")
    assert hub.events_of("slow") == []


def test_repeating_a_hello_does_not_keep_a_port_for_ever(star, monkeypatch) -> None:
    monkeypatch.setattr("starspec.wire.transports.hub_link.ATTACH_S", 0.3)
    hub = star.hub()
    raw = star.raw(hub.endpoint)
    first = raw.greet()
    assert isinstance(first, Welcome)
    star.until(lambda: raw.greet().link_id != first.link_id)


def test_targets_that_come_and_go_do_not_fill_the_log(star) -> None:
    hub = star.hub(max_targets=64)
    with capture_logs() as logs:
        for number in range(LINES + 5):
            star.raw(hub.endpoint).attach(hello(f"raw-{number}"))
    told = [each.get("num_left_out") for each in logs if each["event"] == "target joined"]
    assert len(told) == LINES or any(told)  # a machine so busy that an interval passed


def test_an_idle_target_gives_its_place_to_a_newcomer(star, monkeypatch) -> None:
    monkeypatch.setattr(newcomers, "IDLE_S", 0.2)
    hub = star.hub(max_targets=1)
    idle = star.connected(hub.endpoint, "idle")
    newcomer = star.target(hub.endpoint, "newcomer")
    star.until(lambda: newcomer.is_connected, idle, newcomer)
    star.until(lambda: len(hub.events_of("idle")) == 2, idle, newcomer)


def test_a_target_that_asks_for_drafts_keeps_its_place(star) -> None:
    hub = star.hub(max_targets=1)
    star.connected(hub.endpoint, "busy")
    assert isinstance(star.raw(hub.endpoint).greet(hello("newcomer")), Refused)
