"""The in-memory link keeps the promises of a real one, and its faults are reproducible."""

from __future__ import annotations

import msgspec
import pytest

from starspec.ids import Epoch, LinkId, Tag, TargetId
from starspec.wire.messages import PROTOCOL_VERSION, Goodbye, Hello, Ping, Pong, Proposal, Refused, Reopen, Welcome
from starspec.wire.transports.base import Arrival, Joined, Left
from starspec.wire.transports.faulty_channel import Channel, Faults, VirtualClock
from starspec.wire.transports.memory import MemoryHub, MemoryTarget

TERMS = Welcome(PROTOCOL_VERSION, LinkId(""), 0, "echo", 16, 10.0)


def hello(name: str = "t") -> Hello:
    return Hello(PROTOCOL_VERSION, TargetId(name), 100, "f")


def admit(hello: Hello, num_sequences: int) -> Welcome | Refused:
    return TERMS if num_sequences < 2 else Refused("full", "two are enough", 1.0)


class Echo:
    """A hub that listens. Its transport answers each ping in its turn."""

    def __init__(self, **options: object) -> None:
        self.clock = VirtualClock()
        self.transport = MemoryHub(admit, self.clock, **options)
        self.heard: list[Arrival] = []

    def step(self) -> bool:
        arrivals = self.transport.receive()
        self.heard += arrivals
        return bool(arrivals)

    def connect(self, name: str = "t") -> MemoryTarget:
        return self.transport.connect(hello(name), self.step)

    def messages_of(self, name: str) -> list[object]:
        return [each.message for each in self.heard if each.target_id == name]


def test_a_waiting_target_lets_the_hub_work() -> None:
    hub = Echo()
    target = hub.connect()
    target.send([Ping(1), Ping(2)])
    assert target.receive(1.0) == [Pong(1), Pong(2)]
    assert hub.messages_of("t") == [Joined(hello()), Ping(1), Ping(2)]


def test_receive_ends_when_nobody_has_anything_to_do() -> None:
    hub = Echo()
    target = hub.connect()
    assert target.receive(3600.0) == []
    assert hub.clock() == 0.0


def test_each_target_hears_its_own_answers() -> None:
    hub = Echo()
    one, two = hub.connect("one"), hub.connect("two")
    one.send([Ping(1)])
    two.send([Ping(2)])
    assert two.receive(1.0) == [Pong(2)]
    assert one.receive(1.0) == [Pong(1)]


def test_a_refused_target_asks_again() -> None:
    hub = Echo()
    first, second, third = (hub.connect(name) for name in ("1", "2", "3"))
    assert not third.is_connected
    assert hub.transport.stats.num_refused == 1
    first.close()
    second.receive(0.0)
    assert third.receive(0.0) == []
    assert third.is_connected


def test_close_tells_the_hub_and_is_final() -> None:
    hub = Echo()
    target = hub.connect()
    target.close()
    target.close()
    target.send([Ping(1)])
    hub.step()
    assert hub.messages_of("t") == [Joined(hello()), Left("closed")]
    assert not target.is_connected
    assert target.receive(1.0) == []


def test_goodbye_on_the_wire_ends_the_session() -> None:
    hub = Echo()
    target = hub.connect()
    target.send([Ping(1), Goodbye("enough"), Ping(2)])
    hub.step()
    assert hub.messages_of("t") == [Joined(hello()), Ping(1), Left("enough")]


def test_a_hub_that_dies_loses_the_session_and_a_new_one_begins_when_it_returns() -> None:
    hub = Echo()
    target = hub.connect()
    old = target.welcome
    target.send([Ping(1)])
    hub.transport.fail()
    assert not target.is_connected
    target.send([Ping(2)])
    assert target.receive(1.0) == []
    hub.transport.restore()
    assert target.receive(0.0) == []
    assert target.is_connected
    assert target.num_connects == 2
    assert target.welcome is not None
    assert old is not None
    assert target.welcome.link_id != old.link_id
    hub.transport.send({old.link_id: [Pong(1)]})
    assert hub.transport.stats.num_dropped == 1
    assert target.receive(1.0) == []


def test_messages_pass_through_the_codec() -> None:
    hub = Echo()
    target = hub.connect()
    hub.step()
    assert target.welcome is not None
    impossible = Proposal(Tag(1), Epoch(1), 3, [1, 1], [-1, -1])  # two siblings with one token
    hub.transport.send({target.welcome.link_id: [impossible, Reopen(Tag(1), Epoch(1))]})
    assert target.receive(0.0) == [Reopen(Tag(1), Epoch(1))]
    target.send([msgspec.structs.replace(Ping(1), sequence=-1)])
    hub.step()
    assert hub.messages_of("t") == [Joined(hello())]
    assert hub.transport.stats.num_frames_rejected == 1


def test_without_the_codec_the_very_object_arrives() -> None:
    hub = Echo(is_coded=False)
    target = hub.connect()
    ping = Ping(1)
    target.send([ping])
    hub.step()
    assert hub.messages_of("t")[1] is ping


def test_a_target_waits_for_what_is_on_its_way_but_not_past_its_deadline() -> None:
    hub = Echo(faults=Faults(seed=3, max_delay_s=1.0))
    target = hub.connect()
    target.send([Ping(1)])
    assert target.receive(1e-6) == []
    assert hub.clock() <= 1e-6
    assert target.receive(2.0) == [Pong(1)]
    assert 0.0 < hub.clock() <= 2.0


def test_a_hub_that_always_has_work_holds_a_target_no_longer_than_the_deadline() -> None:
    clock = VirtualClock()
    transport = MemoryHub(admit, clock)

    def work() -> bool:
        clock.advance(0.3)
        return True

    assert transport.connect(hello(), work).receive(1.0) == []
    assert clock() == pytest.approx(1.2)


def test_a_hub_that_is_closed_is_gone_for_its_targets() -> None:
    hub = Echo()
    target = hub.connect()
    hub.transport.close()
    assert not target.is_connected
    assert target.receive(1.0) == []


def test_real_time_passes_for_delayed_messages_on_a_real_clock() -> None:
    transport = MemoryHub(admit, faults=Faults(seed=1, max_delay_s=0.01))

    def step() -> bool:
        arrivals = [each for each in transport.receive() if isinstance(each.message, Ping)]
        for each in arrivals:
            transport.send({each.link_id: [Pong(1)]})
        return bool(arrivals)

    target = transport.connect(hello(), step)
    target.send([Ping(1)])
    assert target.receive(5.0) == [Pong(1)]


def deliveries(faults: Faults) -> list[tuple[float, int]]:
    channel: Channel[Pong] = Channel(None, faults, salt=1)
    for sequence in range(1000):
        channel.put(Pong(sequence), now_s=0.0)
    return [(at_s, message.sequence) for at_s, message in channel.take(10.0)]


def test_faults_lose_repeat_and_reorder_as_often_as_told_and_replay_from_the_seed() -> None:
    faults = Faults(seed=5, drop=0.2, duplicate=0.1, max_delay_s=1.0)
    arrived = deliveries(faults)
    numbers = [number for _, number in arrived]
    assert 150 < 1000 - len(set(numbers)) < 250
    assert 50 < len(numbers) - len(set(numbers)) < 110
    assert numbers != sorted(numbers)
    assert [at_s for at_s, _ in arrived] == sorted(at_s for at_s, _ in arrived)
    assert deliveries(faults) == arrived
    assert deliveries(Faults(seed=6, drop=0.2, duplicate=0.1, max_delay_s=1.0)) != arrived


def test_a_channel_without_faults_keeps_order() -> None:
    assert [number for _, number in deliveries(Faults())] == list(range(1000))
