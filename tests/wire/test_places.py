"""Places at a hub are for targets that complete the handshake, and honest newcomers get in."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import pytest
import zmq
from structlog.testing import capture_logs

from starspec.ids import Epoch, Tag, TargetId
from starspec.log_limit import LINES
from starspec.policy import newcomers
from starspec.sampling.spec import SamplingSpec
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Goodbye,
    Hello,
    HubPublicReply,
    HubToTarget,
    Open,
    Ping,
    Pong,
    Refused,
    Verdict,
    Welcome,
)
from starspec.wire.transports import hub_link

NUM_HELLOS = 900  # of one connection at once: more than its address may begin links, fewer than end the connection
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


def elsewhere(hub, number: int) -> str:
    """The hub's endpoint, for a connection that comes from another address of this machine."""
    return hub.endpoint.replace("tcp://", f"tcp://127.0.0.{number}:0;")


def asking(tag: int, num_draft_tokens: int) -> bytes:
    return encode(Open(Tag(tag), Epoch(1), [1, 2], 2, SamplingSpec(), num_draft_tokens))


def come_from(star, hub, number: int, name: str):
    """A target at another address that has completed the handshake."""
    raw = star.raw(elsewhere(hub, number))
    welcome = raw.greet(hello(name))
    assert isinstance(welcome, Welcome), welcome
    raw.endpoint = hub.endpoint
    raw.come_to(welcome)
    assert raw.ask(raw.socket, [encode(Ping(0))], HubToTarget) == Pong(0)
    return raw


def test_a_peer_that_holds_all_places_and_looks_busy_gives_some_to_others(star) -> None:
    hub = star.hub(max_targets=4)
    for number in range(4):
        come_from(star, hub, 2, f"greedy-{number}").socket.send(asking(1, 4))
        star.until(lambda name=f"greedy-{number}": len(hub.messages_of(name)) == 2)
    come_from(star, hub, 3, "honest")
    star.until(lambda: len(hub.events_of("greedy-0")) == 2)
    come_from(star, hub, 4, "another")
    assert isinstance(star.raw(elsewhere(hub, 2)).greet(hello("greedy-4")), Refused), "it has its share"
    assert isinstance(star.raw(elsewhere(hub, 3)).greet(hello("honest-2")), Refused), "so has the other one"
    assert [len(hub.events_of(name)) for name in ("greedy-1", "greedy-2", "honest")] == [2, 1, 1]


def test_one_that_says_hello_without_end_shuts_nobody_out(star) -> None:
    hub = star.hub()
    loud = star.raw(elsewhere(hub, 2))
    for number in range(NUM_HELLOS):
        loud.socket.send(encode(hello(f"loud-{number}")))
    replies = [Decoder(HubPublicReply).decode(loud.socket.recv()) for _ in range(NUM_HELLOS)]
    assert isinstance(replies[-1], Refused), "too many of one address are refused"
    come_from(star, hub, 3, "honest")
    star.until(lambda: isinstance(loud.greet(hello("late")), Welcome), timeout_s=5.0)


def test_who_asks_for_no_drafts_does_not_use_its_place(star, monkeypatch) -> None:
    monkeypatch.setattr(newcomers, "IDLE_S", 0.3)
    hub = star.hub(max_targets=1)
    raw = star.raw(hub.endpoint)
    raw.attach(hello("idle"))
    newcomer = star.target(hub.endpoint, "newcomer")

    def look_busy() -> bool:
        with contextlib.suppress(zmq.Again):  # it has lost its place
            raw.socket.send(asking(1, 0), zmq.NOBLOCK)
            raw.socket.send(encode(Verdict(Tag(9), Epoch(7), 5, [1], 4)), zmq.NOBLOCK)
        return newcomer.is_connected

    star.until(look_busy, newcomer)


def a_range_of_ports(num_ports: int) -> tuple[int, int]:
    """FIRST and LAST of ports in a row that nobody has, and that no test in another process asks for."""
    begin = 22_000 + os.getpid() % 160 * 64  # enough for all tests here: a port that was in use is taken for a minute
    for first in range(begin, begin + 64, num_ports):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + num_ports):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first, first + num_ports - 1
    pytest.fail("no ports in a row are free")


@pytest.mark.parametrize("num_ports", [1, 4])
def test_who_only_says_hello_takes_no_port_of_a_range_from_others(star, num_ports, monkeypatch) -> None:
    monkeypatch.setattr(hub_link, "ATTACH_S", 60.0)
    hub = star.hub(data_ports=a_range_of_ports(num_ports))
    for number in range(2 * num_ports):
        assert isinstance(star.raw(elsewhere(hub, 2)).greet(hello(f"greedy-{number}")), Welcome)
    star.connected(hub.endpoint, "honest")


def test_who_holds_all_ports_of_a_range_gives_some_to_others(star) -> None:
    hub = star.hub(max_targets=8, lease_s=60.0, data_ports=a_range_of_ports(4))
    for number in range(4):
        come_from(star, hub, 2, f"greedy-{number}").socket.send(asking(1, 4))
        star.until(lambda name=f"greedy-{number}": len(hub.messages_of(name)) == 2)
    star.connected(hub.endpoint, "honest")
    come_from(star, hub, 3, "another")
    assert isinstance(star.raw(elsewhere(hub, 2)).greet(hello("greedy-4")), Refused), "it has its share"


def ask_for_a_port(raw, name: str) -> object:
    raw.socket.send(encode(hello(name)))
    assert raw.socket.poll(20_000)
    return Decoder(HubPublicReply).decode(raw.socket.recv())


@pytest.mark.parametrize("is_holder", [False, True])
def test_who_says_hello_without_end_takes_no_port_from_a_target_that_is_slow_to_come(star, is_holder) -> None:
    """Such as one that is far away: others say Hello many times before it comes."""
    hub = star.hub(max_targets=8, lease_s=60.0, data_ports=a_range_of_ports(4))
    for number in range(4 if is_holder else 3):
        owner = 2 if is_holder else 5 + number
        come_from(star, hub, owner, f"busy-{number}").socket.send(asking(1, 4))
        star.until(lambda name=f"busy-{number}": len(hub.messages_of(name)) == 2)
    greedy, slow = star.raw(elsewhere(hub, 2)), star.raw(elsewhere(hub, 4))
    answer = ask_for_a_port(greedy, "greedy")
    assert isinstance(answer, Refused if is_holder else Welcome)
    welcome = slow.greet(hello("slow"))
    assert isinstance(welcome, Welcome), welcome
    for number in range(20):
        assert isinstance(ask_for_a_port(greedy, f"greedy-{number}"), Refused)
    slow.endpoint = hub.endpoint
    slow.come_to(welcome)
    assert slow.ask(slow.socket, [encode(Ping(0))], HubToTarget) == Pong(0)


def test_who_says_hello_and_never_comes_takes_no_second_port_of_a_working_target(star) -> None:
    hub = star.hub(max_targets=8, lease_s=60.0, data_ports=a_range_of_ports(4))
    for number in range(4):
        come_from(star, hub, 2, f"busy-{number}").socket.send(asking(1, 4))
        star.until(lambda name=f"busy-{number}": len(hub.messages_of(name)) == 2)
    assert isinstance(star.raw(elsewhere(hub, 3)).greet(hello("vain")), Welcome)
    star.until(lambda: len(hub.events_of("busy-0")) == 2)
    vain = star.raw(elsewhere(hub, 3))
    for number in range(20):
        ask_for_a_port(vain, f"vain-{number}")
    assert [len(hub.events_of(f"busy-{number}")) for number in range(4)] == [2, 1, 1, 1]


def test_who_takes_ports_of_a_full_range_all_the_time_soon_gets_no_more_and_others_do(star, monkeypatch) -> None:
    """Each time, the hub waits until the port is free, and all targets with it."""
    monkeypatch.setattr(hub_link, "ATTACH_S", 60.0)
    hub = star.hub(data_ports=a_range_of_ports(1))
    connections = [star.raw(elsewhere(hub, 2)) for _ in range(30)]
    began_s = time.monotonic()
    answers = [ask_for_a_port(each, f"greedy-{number}") for number, each in enumerate(connections)]
    most = 1 + newcomers.TAKES_BURST + newcomers.TAKES_PER_S * (time.monotonic() - began_s)
    assert sum(isinstance(each, Welcome) for each in answers) <= most
    star.connected(hub.endpoint, "honest")
