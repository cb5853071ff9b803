"""Hub and targets over real sockets: the handshake, the traffic, the ends."""

from __future__ import annotations

import contextlib
import errno
import queue
import re
import socket as stdlib_socket
import threading
import time
from collections.abc import Callable, Iterable

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from starspec.errors import ConfigError, OurBug
from starspec.hub.loop import HubLoop
from starspec.ids import Epoch, LinkId, Tag, TargetId
from starspec.policy import peer_limits
from starspec.policy.reconnecting import HINT_S, RETRY_S, START_S, UNHEARD_S
from starspec.sampling.spec import SamplingSpec
from starspec.stats import HubStats, HubTargetStats
from starspec.wire.codec import MAX_FRAME_BYTES, MAX_MESSAGES, MAX_PUBLIC_FRAME_BYTES, Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Ask,
    Fault,
    Goodbye,
    Hello,
    HubPublicReply,
    HubStatus,
    HubToTarget,
    LongOpen,
    Open,
    Ping,
    Pong,
    Proposal,
    Refused,
    Reopen,
    TargetToHub,
    Verdict,
    Welcome,
)
from starspec.wire.transports import hub_io, hub_link, sockets, zmq_target
from starspec.wire.transports.base import HubTransportStats, Joined, Left
from starspec.wire.transports.hub_io import HubQueues, Outgoing
from starspec.wire.transports.zmq_hub import ZmqHub
from starspec.wire.transports.zmq_target import ZmqTarget

PATIENCE_S = 20.0


def hello(name: str = "t") -> Hello:
    return Hello(PROTOCOL_VERSION, TargetId(name), 100, "f")


def test_a_hub_that_loads_for_long_is_no_alarm_and_one_that_never_comes_is(star) -> None:
    now = 1.0
    target = star.target("tcp://127.0.0.1:1", clock=lambda: now)
    with capture_logs() as logs:
        for _ in range(3):
            target.receive(0.0)
            now += HINT_S + 0.1
        assert [(each["log_level"], each["event"]) for each in logs] == [
            ("info", "no hub yet: decoding goes on without it")
        ]
        now += START_S
        target.receive(0.0)
        target.receive(0.0)
    assert [(each["log_level"], each["problem"]) for each in logs[1:]] == [("warning", target.problem)]


def test_what_is_there_and_does_not_answer_is_a_warning_soon(star) -> None:
    now = 1.0
    with zmq.Context() as context, context.socket(zmq.ROUTER) as stage:
        stage.linger = 0
        target = star.target(f"tcp://127.0.0.1:{stage.bind_to_random_port('tcp://127.0.0.1')}", clock=lambda: now)
        with capture_logs() as logs:
            while not stage.poll(10):
                target.receive(0.0)
            assert logs == []
            now += UNHEARD_S
            target.receive(0.0)
            now += RETRY_S
            target.receive(0.0)
    assert [each["problem"] for each in logs if each["log_level"] == "warning"] == [target.problem]
    assert "is there and does not answer: does the hub hang, or is it not a hub?" in target.problem


@pytest.mark.parametrize("nonsense", [bytes(100), b"\xff" * 64], ids=["zeros", "greeting"])
def test_a_hub_is_found_although_another_server_was_there(star, nonsense: bytes, monkeypatch) -> None:
    """ZeroMQ does not connect again to what sent something else than ZMTP."""
    monkeypatch.setattr(zmq_target, "GIVEN_UP_S", 0.5)
    with contextlib.closing(stdlib_socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        target = star.target(f"tcp://127.0.0.1:{port}")
        target.receive(0.0)
        peer, _ = other.accept()
        with contextlib.closing(peer), contextlib.suppress(ConnectionResetError):
            peer.sendall(nonsense)
            while peer.recv(1000):
                pass
    star.hub(port=port)
    star.until(lambda: target.is_connected, target)


def test_a_target_is_welcomed_to_a_port_of_its_own_and_is_answered_there(star) -> None:
    hub = star.hub()
    one, two = star.connected(hub.endpoint, "one"), star.connected(hub.endpoint, "two")
    assert one.welcome is not None
    assert two.welcome is not None
    assert len({hub.transport.port, one.welcome.port, two.welcome.port}) == 3
    one.send([Ping(1)])
    two.send([Ping(2)])
    assert one.receive(5.0) == [Pong(1)]
    assert two.receive(5.0) == [Pong(2)]
    star.until(lambda: hub.messages_of("one") == [Joined(hello("one")), Ping(1)])


def test_a_ping_is_answered_while_the_hub_computes_and_is_heard_after_it(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    star.until(lambda: hub.messages_of("t") == [Joined(hello())])
    with hub.computing():
        target.send([Ping(3, plain_tokens_per_s=50.0)])
        assert target.receive(5.0) == [Pong(3)]
        assert hub.messages_of("t") == [Joined(hello())]
    star.until(lambda: hub.messages_of("t")[1:] == [Ping(3, plain_tokens_per_s=50.0)])


def test_what_a_target_sends_together_arrives_together(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    assert target.welcome is not None
    proposals = [Proposal(Tag(tag), Epoch(1), 3, [1, 2]) for tag in range(50)]
    hub.transport.send({target.welcome.link_id: proposals})
    received = []
    star.until(lambda: received.extend(target.receive(1.0)) or len(received) == len(proposals))
    assert received == proposals
    verdicts = [Verdict(Tag(tag), Epoch(2), 3, [1], 4) for tag in range(50)]
    target.send(verdicts)
    star.until(lambda: len(hub.heard) > 1)
    moments = {each.arrived_at for each in hub.heard if isinstance(each.message, Verdict)}
    assert hub.messages_of("t")[1:] == verdicts
    assert len(moments) == 1


def test_more_than_a_multipart_takes_travels_in_several(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    assert target.welcome is not None
    proposals = [Proposal(Tag(tag), Epoch(1), 3, [1, 2]) for tag in range(2 * MAX_MESSAGES + 1)]
    target.send([Verdict(each.tag, Epoch(1), 2, [1], 2) for each in proposals])  # which ask for them
    hub.transport.send({target.welcome.link_id: proposals})
    received = []
    star.until(lambda: received.extend(target.receive(1.0)) or len(received) == len(proposals))
    assert received == proposals
    assert target.num_frames_rejected == 0


def test_receive_waits_for_the_first_message_and_no_longer_than_told(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    began = time.monotonic()
    assert target.receive(0.05) == []
    assert 0.04 < time.monotonic() - began < 1.0


def test_receive_does_not_wait_while_there_is_no_hub(star) -> None:
    target = star.target("tcp://127.0.0.1:9")
    began = time.monotonic()
    assert target.receive(30.0) == []
    assert time.monotonic() - began < 1.0
    target.send([Ping(1)])
    assert target.num_dropped == 1
    assert (target.is_connected, target.welcome, target.num_connects) == (False, None, 0)


def test_a_target_that_says_goodbye_leaves_at_once(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    target.close()
    target.close()
    star.until(lambda: len(hub.events_of("t")) == 2)
    assert hub.events_of("t") == [Joined(hello()), Left("the target is closing")]
    assert target.receive(1.0) == []


def test_a_target_whose_connection_breaks_leaves_at_once(star) -> None:
    hub = star.hub()
    raw = star.raw(hub.endpoint)
    raw.attach()
    raw.socket.close(linger=0)
    took_s = star.until(lambda: len(hub.events_of("raw")) == 2)
    assert hub.events_of("raw")[-1] == Left("the connection broke")
    assert took_s < 2.0


def test_a_connection_of_a_stranger_that_breaks_ends_nobody(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    assert target.welcome is not None
    for _ in range(20):
        stdlib_socket.create_connection(("127.0.0.1", target.welcome.port)).close()
    stop_at = time.monotonic() + 4 * hub_io.TICK_S
    star.until(lambda: time.monotonic() > stop_at, target)
    assert hub.events_of("t") == [Joined(hello())]
    target.send([Ping(1)])
    assert target.receive(5.0) == [Pong(1)]


def test_a_silent_target_leaves_when_its_lease_expires(star) -> None:
    hub = star.hub(lease_s=0.3)
    raw = star.raw(hub.endpoint)
    raw.attach()
    star.until(lambda: len(hub.events_of("raw")) == 2)
    assert hub.events_of("raw")[-1] == Left("was silent for 0.3 s")
    assert hub.transport.stats.num_leases_expired == 1


def test_a_target_that_only_listens_keeps_its_lease(star) -> None:
    hub = star.hub(lease_s=0.4)
    target = star.connected(hub.endpoint)
    stop_at = time.monotonic() + 1.2
    star.until(lambda: time.monotonic() > stop_at, target)
    assert hub.events_of("t") == [Joined(hello())]


def test_an_expired_session_starts_anew(star) -> None:
    hub = star.hub(lease_s=0.3)
    target = star.connected(hub.endpoint)
    star.until(lambda: len(hub.events_of("t")) == 2)  # the target is not driven meanwhile
    star.until(lambda: target.num_connects == 2, target)
    target.send([Ping(1)])
    assert target.receive(5.0) == [Pong(1)]


def test_a_target_that_never_comes_to_its_port_loses_it(star, monkeypatch) -> None:
    monkeypatch.setattr(hub_link, "ATTACH_S", 0.2)
    hub = star.hub(max_targets=1)
    raw = star.raw(hub.endpoint)
    assert isinstance(raw.greet(), Welcome)
    star.connected(hub.endpoint)
    assert hub.events_of("raw") == []


def test_a_full_hub_refuses_with_a_reason_and_takes_the_next_when_one_leaves(star) -> None:
    hub = star.hub(max_targets=1)
    first, second = star.connected(hub.endpoint, "first"), star.target(hub.endpoint, "second")
    star.until(lambda: second.problem == "the hub refused: no place", second)
    assert hub.transport.stats.num_refused >= 1
    first.close()
    star.until(lambda: second.is_connected, second)
    assert second.problem == ""


def test_a_hello_said_twice_gets_the_same_answer(star) -> None:
    hub = star.hub(max_targets=1)
    raw = star.raw(hub.endpoint)
    assert raw.greet() == raw.greet()
    other = raw.greet(hello("another"))  # the same caller thinks again: its first place is free
    assert isinstance(other, Welcome)


@pytest.mark.parametrize(
    "frame",
    [
        encode(msgspec.structs.replace(hello(), protocol_version=3)),
        msgspec.msgpack.encode({"type": "hello", "protocol_version": 3, "who": "from the future"}),
    ],
    ids=["known fields", "other fields"],
)
def test_another_protocol_version_is_refused_in_a_sentence(star, frame: bytes) -> None:
    from starspec.hub.handshake import HubTerms, admit

    terms = HubTerms(draft_name="d", vocab_fingerprint="f", max_targets=1, max_draft_tokens=4, lease_s=1.0)
    transport = ZmqHub("127.0.0.1", 0, lambda hello, num: admit(terms, hello, num), lambda: None)
    try:
        raw = star.raw(f"tcp://127.0.0.1:{transport.port}")
        answer = raw.ask(raw.socket, [frame])
    finally:
        transport.close()
    assert isinstance(answer, Refused)
    assert (answer.code, answer.retry_after_s) == ("version", None)
    assert "this hub speaks protocol version 2, the target 3: install the same starspec release" in answer.reason


def test_a_hub_reports_itself_to_whoever_asks(star) -> None:
    hub = star.hub()
    assert isinstance(star.raw(hub.endpoint).greet(Ask(PROTOCOL_VERSION)), HubStatus)
    refused = star.raw(hub.endpoint).greet(Ask(PROTOCOL_VERSION + 1))
    assert isinstance(refused, Refused)
    assert refused.code == "version"


def test_malformed_frames_are_counted_answered_sparingly_and_disturb_nobody(star) -> None:
    hub = star.hub()
    honest, raw = star.connected(hub.endpoint), star.raw(hub.endpoint)
    raw.attach()
    bad = [[b""], [b"\xc1"], [encode(Ask(PROTOCOL_VERSION))], [encode(Ping(1)), b"\xc1"], []]
    for frames in bad * 20:
        raw.socket.send_multipart(frames or [b"", b""])
    raw.socket.send(encode(Ping(7)))
    answers = []
    while Pong(7) not in answers:
        assert raw.socket.poll(5000)
        answers.append(Decoder(HubToTarget).decode(raw.socket.recv()))
    faults = [each for each in answers if isinstance(each, Fault)]
    assert 1 <= len(faults) < 10  # one a second
    assert "not a message" in faults[0].reason
    assert hub.transport.stats.num_frames_rejected == 100
    star.until(lambda: Ping(7) in hub.messages_of("raw"))
    assert hub.messages_of("raw") == [Joined(hello("raw")), Ping(7)]  # a multipart counts whole or not at all
    honest.send([Ping(1)])
    assert honest.receive(5.0) == [Pong(1)]


def test_a_hub_does_not_repeat_at_length_what_it_cannot_read(star) -> None:
    hub = star.hub()
    honest, raw = star.connected(hub.endpoint), star.raw(hub.endpoint)
    fault = raw.ask(raw.socket, [msgspec.msgpack.encode({"type": "A" * (MAX_PUBLIC_FRAME_BYTES - 20)})])
    assert isinstance(fault, Fault)
    assert len(fault.reason) < 400
    raw.attach()
    fault = raw.ask(raw.socket, [msgspec.msgpack.encode({"type": "A" * (MAX_FRAME_BYTES - 11)})], HubToTarget)
    assert isinstance(fault, Fault)
    assert len(fault.reason) < 400
    honest.send([Ping(1)])
    assert honest.receive(5.0) == [Pong(1)]


def test_a_report_too_large_for_a_frame_is_dropped_and_the_hub_goes_on(star) -> None:
    targets = {TargetId(f"target-{number:04}" + "x" * 180): HubTargetStats() for number in range(6000)}
    terms = Welcome(PROTOCOL_VERSION, LinkId(""), 0, "d", 16, 10.0)
    hub = ZmqHub("127.0.0.1", 0, lambda hello, num: terms, lambda: HubStatus("d", HubStats(), targets))
    try:
        raw = star.raw(f"tcp://127.0.0.1:{hub.port}")
        raw.socket.send(encode(Ask(PROTOCOL_VERSION)))
        star.until(lambda: hub.stats.num_dropped == 1)
        star.connected(f"tcp://127.0.0.1:{hub.port}")
    finally:
        hub.close()


def test_a_hub_without_sockets_left_refuses_the_next_target_and_serves_the_others(star) -> None:
    hub = star.hub(max_targets=64, lease_s=1.0)  # after so long a refused target asks again
    held = [star.connected(hub.endpoint, f"t{number}") for number in range(3)]
    hub.transport._context.socket = _no_socket
    late = star.target(hub.endpoint, "late")
    star.until(lambda: "the hub refused" in late.problem, late)
    assert "Too many open files" in late.problem
    for number, target in enumerate(held, start=1):
        target.send([Ping(number)])
        assert target.receive(5.0) == [Pong(number)]
    del hub.transport._context.socket
    star.until(lambda: late.is_connected, late)


def _no_socket(*_: object) -> None:
    raise zmq.ZMQError(errno.EMFILE)


def test_a_message_before_the_first_ping_breaks_the_protocol(star) -> None:
    hub = star.hub()
    raw = star.raw(hub.endpoint)
    welcome = raw.greet()
    assert isinstance(welcome, Welcome)
    early = star.raw(f"tcp://127.0.0.1:{welcome.port}", welcome.link_id.encode())
    fault = early.ask(early.socket, [encode(Verdict(Tag(1), Epoch(2), 3, [1], 1))], HubToTarget)
    assert fault == Fault("Verdict is not allowed while the link is attaching")
    assert hub.messages_of("raw") == []


def test_an_identity_that_is_not_the_session_is_refused(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    assert target.welcome is not None
    stranger = star.raw(f"tcp://127.0.0.1:{target.welcome.port}", b"somebody else")
    answer = stranger.ask(stranger.socket, [encode(Ping(9))], HubToTarget)
    assert answer == Fault("this port belongs to another link")
    assert Ping(9) not in hub.messages_of("t")


def test_a_frame_beyond_the_limit_cuts_off_its_sender_only(star) -> None:
    hub = star.hub()
    honest, raw = star.connected(hub.endpoint), star.raw(hub.endpoint)
    raw.attach()
    raw.socket.send(b"x" * (MAX_FRAME_BYTES + 1))
    star.until(lambda: len(hub.events_of("raw")) == 2)
    honest.send([Ping(1)])
    assert honest.receive(5.0) == [Pong(1)]


def test_a_message_that_is_too_large_is_dropped_and_the_others_go(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    target.send([Ping(1), Goodbye("x" * MAX_FRAME_BYTES), Ping(2)])
    star.until(lambda: hub.messages_of("t")[1:] == [Ping(1), Ping(2)])
    assert target.num_dropped == 1


def test_what_is_for_a_target_that_left_is_dropped_and_counted(star) -> None:
    hub = star.hub()
    hub.transport.send({LinkId("nobody"): [Reopen(Tag(1), Epoch(1)), Pong(1)]})
    star.until(lambda: hub.transport.stats.num_dropped == 2)


def test_a_target_that_floods_is_slowed_and_the_others_are_not(star, monkeypatch) -> None:
    monkeypatch.setattr(peer_limits, "MAX_BACKLOG", 100)
    terms = Welcome(PROTOCOL_VERSION, LinkId(""), 0, "d", 16, 10.0)
    hub = ZmqHub("127.0.0.1", 0, lambda hello, num: terms, lambda: None)
    try:
        raw = star.raw(f"tcp://127.0.0.1:{hub.port}")
        raw.attach()
        for number in range(1, 2001):
            raw.socket.send(encode(Ping(number)))
        honest = star.connected(f"tcp://127.0.0.1:{hub.port}", "honest")
        honest.send([Ping(1)])
        waiting = hub.receive(5.0)
        assert len(waiting) < 300  # the backlog, a last burst, and what the honest one said
        while not any(each.target_id == "honest" and each.message == Ping(1) for each in waiting):
            waiting += hub.receive(5.0)
        numbers = [each.message.sequence for each in waiting if each.target_id == "raw" and type(each.message) is Ping]
        while len(numbers) < 2000:
            numbers += [each.message.sequence for each in hub.receive(5.0) if each.target_id == "raw"]
        assert numbers == list(range(1, 2001))
    finally:
        hub.close()


class AlwaysAhead:
    """Stands for a hub whose draft step runs ahead for long."""

    has_work = True
    num_handled = 0

    def join(self, *what: object) -> None:
        pass

    def handle(self, *what: object) -> None:
        self.num_handled += 1

    def is_obsolete(self, arrived: Iterable[object]) -> bool:
        return False

    def step(self, now: float, is_obsolete: Callable[[], bool]) -> list[object]:
        for _ in range(50):
            time.sleep(0.005)  # the draft step; the I/O thread reads meanwhile
            is_obsolete()
        return []


def test_what_arrives_during_a_draft_step_ahead_counts_as_waiting_until_it_is_handled(star, monkeypatch) -> None:
    monkeypatch.setattr(peer_limits, "MAX_BACKLOG", 100)
    terms = Welcome(PROTOCOL_VERSION, LinkId(""), 0, "d", 16, 10.0)
    transport = ZmqHub("127.0.0.1", 0, lambda hello, num: terms, lambda: None)
    hub = AlwaysAhead()
    loop = HubLoop(hub, transport)  # type: ignore[arg-type]
    try:
        raw = star.raw(f"tcp://127.0.0.1:{transport.port}")
        raw.attach()
        for number in range(1, 1001):
            raw.socket.send(encode(Ping(number)))
        loop.run_once()
        before = hub.num_handled
        loop.run_once()
        assert hub.num_handled - before < 300, "the backlog, and a last burst"
        for _ in range(40):
            if hub.num_handled < 1000:
                loop.run_once()
        assert hub.num_handled == 1000, "it is read on when they are handled"
    finally:
        transport.close()


def test_the_tokens_of_a_context_that_is_too_long_for_the_hub_are_not_decoded(star) -> None:
    hub = star.hub(max_len=20)
    raw = star.raw(hub.endpoint)
    raw.attach()
    for num_tokens in (20, 21, 70_000):
        raw.socket.send(encode(Open(Tag(num_tokens), Epoch(1), [7] * num_tokens, 3, SamplingSpec(), 4)))
    star.until(lambda: len(hub.messages_of("raw")) == 4)
    _, fits, *long = hub.messages_of("raw")
    assert type(fits) is Open
    assert [(type(each), each.tag, each.num_tokens, each.token_ids) for each in long] == [
        (LongOpen, 21, 21, []),
        (LongOpen, 70_000, 70_000, []),
    ]
    assert [each.num_draft_tokens for each in long] == [4, 4]


def test_a_target_that_flooded_and_went_leaves_all_the_same(star, monkeypatch) -> None:
    monkeypatch.setattr(peer_limits, "MAX_BACKLOG", 100)
    terms = Welcome(PROTOCOL_VERSION, LinkId(""), 0, "d", 16, 10.0)
    full = Refused("full", "one is enough", 0.1)
    hub = ZmqHub("127.0.0.1", 0, lambda hello, num: full if num else terms, lambda: None)
    try:
        raw = star.raw(f"tcp://127.0.0.1:{hub.port}")
        raw.attach()
        for number in range(1, 301):
            raw.socket.send(encode(Ping(number)))
        raw.socket.close(linger=PATIENCE_S * 1000)
        raw.context.term()  # returns when all is sent
        star.connected(f"tcp://127.0.0.1:{hub.port}", "next")  # its place is free, though nobody has read its words
        words = [each.message for each in hub.receive(5.0) if each.target_id == "raw"]
        assert isinstance(words[0], Joined)
        assert isinstance(words[-1], Left)
        assert 100 <= len(words) < 300
    finally:
        hub.close()


def test_a_hub_that_stood_still_does_not_blame_its_targets(star, monkeypatch) -> None:
    monkeypatch.setattr(hub_io, "STALL_S", 0.2)
    is_over = threading.Event()

    def stand_still() -> HubStatus:
        threading.Event().wait(0.8)  # the stall itself: longer than the lease
        is_over.set()
        return HubStatus("d", HubStats())

    terms = Welcome(PROTOCOL_VERSION, LinkId(""), 0, "d", 16, 0.5)
    hub = ZmqHub("127.0.0.1", 0, lambda hello, num: terms, stand_still)
    try:
        raw, caller = star.raw(f"tcp://127.0.0.1:{hub.port}"), star.raw(f"tcp://127.0.0.1:{hub.port}")
        raw.attach()
        caller.socket.send(encode(Ask(PROTOCOL_VERSION)))
        assert is_over.wait(PATIENCE_S)
        assert isinstance(Decoder(HubPublicReply).decode(caller.socket.recv()), HubStatus)
        assert raw.ask(raw.socket, [encode(Ping(0))], HubToTarget) == Pong(0)
        assert hub.stats.num_leases_expired == 0
    finally:
        hub.close()


def test_an_answer_for_a_caller_that_went_is_dropped_and_counted(star) -> None:
    is_asked, is_gone = threading.Event(), threading.Event()

    def answer_late() -> HubStatus:
        is_asked.set()
        is_gone.wait(PATIENCE_S)
        return HubStatus("d", HubStats())

    def ask_and_go() -> bool:
        """Returns: whether the answer was dropped."""
        is_asked.clear()
        is_gone.clear()
        caller = star.raw(f"tcp://127.0.0.1:{hub.port}")
        caller.socket.send(encode(Ask(PROTOCOL_VERSION)))
        assert is_asked.wait(PATIENCE_S)
        caller.close()  # returns when the caller's end is closed; ZeroMQ may notice at the hub's end a moment later
        is_gone.set()
        caller = star.raw(f"tcp://127.0.0.1:{hub.port}")
        assert isinstance(caller.greet(Ask(PROTOCOL_VERSION)), HubStatus)  # so the answer before it was sent or dropped
        return hub.stats.num_dropped > 0

    hub = ZmqHub("127.0.0.1", 0, lambda hello, num: None, answer_late)
    try:
        star.until(ask_and_go)
        assert hub.stats.num_dropped == 1
    finally:
        is_gone.set()
        hub.close()


def test_replies_beyond_the_bound_are_dropped_and_counted(monkeypatch) -> None:
    monkeypatch.setattr(hub_io, "MAX_REPLIES", 3)
    stats = HubTransportStats()
    queues = HubQueues(queue.SimpleQueue(), stats)
    for _ in range(5):
        queues.put_replies([Outgoing(LinkId("s"), [b"one", b"two"], 0, 0.0)])
    assert (len(queues.replies), stats.num_dropped) == (3, 4)
    queues.close()
    queues.put_replies([Outgoing(LinkId("s"), [b"late"], 0, 0.0)])  # nobody is there to be woken, and nobody minds


def test_a_port_in_use_is_a_sentence_with_the_port(star) -> None:
    hub = star.hub()
    port = hub.transport.port
    with pytest.raises(ConfigError, match=f"the hub cannot listen on 127.0.0.1:{port}: the port is in use"):
        star.hub(port=port)


@pytest.mark.parametrize(
    ("host", "sentence"),
    [("192.0.2.1", "this machine has no such address"), ("no.such.host.invalid", "this machine has no such address")],
)
def test_an_address_that_is_not_ours_is_a_sentence(host: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ZmqHub(host, 0, lambda hello, num: None, lambda: None, is_insecure=True)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EACCES, "the hub may not listen on 127.0.0.1:80: choose a port above 1023"),
        (errno.ENOMEM, "the hub cannot listen on 127.0.0.1:80: "),
    ],
)
def test_every_reason_not_to_listen_is_a_sentence(monkeypatch, number: int, sentence: str) -> None:
    bind = zmq.Socket.bind

    def fail(self: zmq.Socket, address: str) -> None:
        if address.startswith("tcp:"):
            raise zmq.ZMQError(number)
        bind(self, address)

    monkeypatch.setattr(zmq.Socket, "bind", fail)
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        ZmqHub("127.0.0.1", 80, lambda hello, num: None, lambda: None)


MALFORMED = ["127.0.0.1:7700", "tcp://127.0.0.1", "tcp://:7700", "tcp://h:port", "tcp://h:\u0667"]
MALFORMED += [
    f"tcp://{host}:7700" for host in ("*", "http://hub", "hub.example.com/", "user@hub", "my hub", "h\u00fcb")
]


@pytest.mark.parametrize("endpoint", MALFORMED)
def test_a_malformed_endpoint_is_a_sentence(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form tcp://host:port"):
        ZmqTarget(endpoint, hello(), is_insecure=True)


@pytest.mark.parametrize(
    ("endpoint", "sentence"),
    [
        ("tcp://h:0", "a port must be 1 to 65535"),
        ("tcp://h:65536", "a port must be 1 to 65535"),
        (f"tcp://h:{'9' * 5000}", "a port must be 1 to 65535"),
        ("tcp://300.1.1.1:7700", "'300.1.1.1' is not an IP address"),
        ("tcp://[1::2::3]:7700", "is not an IP address"),
    ],
)
def test_an_endpoint_that_cannot_exist_says_what_is_wrong(endpoint: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        ZmqTarget(endpoint, hello(), is_insecure=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "[::1]", "[fe80::1%eth0]", "a-name.example", "7up.example"])
def test_an_address_or_a_name_passes(host: str) -> None:
    assert sockets.host_of(f"tcp://{host}:65535", "the hub") == host


def test_ipv6_loopback_works(star) -> None:
    try:
        hub = ZmqHub("::1", 0, lambda hello, num: Welcome(PROTOCOL_VERSION, LinkId(""), 0, "d", 4, 9.0), lambda: None)
    except ConfigError as error:
        assert "no such address" in str(error)  # noqa: PT017
        pytest.skip("this machine has no IPv6")
    try:
        star.connected(f"tcp://[::1]:{hub.port}")
    finally:
        hub.close()


def test_a_fault_of_the_io_thread_reaches_the_hub(star) -> None:
    def admit(hello: Hello, num_sequences: int) -> Welcome:
        raise ZeroDivisionError("a bug")

    hub = ZmqHub("127.0.0.1", 0, admit, lambda: None)
    try:
        star.raw(f"tcp://127.0.0.1:{hub.port}").socket.send(encode(hello()))
        with pytest.raises(OurBug, match="the hub's I/O thread has died") as caught:
            hub.receive(10.0)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(OurBug):
            hub.receive(0.0)
    finally:
        hub.close()
        hub.close()


def test_a_closing_hub_says_goodbye(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    hub.close()
    star.until(lambda: not target.is_connected, target)
    assert target.problem == "the hub is closing"


class StubbornHub:
    """A hub that completes the handshake and then behaves as its test wants: it is a bare socket."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.public, self.own = self.context.socket(zmq.ROUTER), self.context.socket(zmq.ROUTER)
        self.port = self.public.bind_to_random_port("tcp://127.0.0.1")
        self.own_port = self.own.bind_to_random_port("tcp://127.0.0.1")

    def welcome(self, star, target: ZmqTarget) -> None:
        star.until(lambda: self.public.poll(0), target)
        caller, _ = self.public.recv_multipart()
        self.public.send_multipart(
            [caller, encode(Welcome(PROTOCOL_VERSION, LinkId("s"), self.own_port, "d", 4, 10.0))]
        )
        star.until(lambda: self.own.poll(0), target)
        assert Decoder(TargetToHub).decode(self.own.recv_multipart()[1]) == Ping(0)
        self.send(encode(Pong(0)))
        star.until(lambda: target.is_connected, target)

    def send(self, *frames: bytes) -> None:
        self.own.send_multipart([b"s", *frames])

    def receive(self) -> object:
        """The next message that is no keep-alive."""
        while True:
            assert self.own.poll(int(PATIENCE_S * 1000))
            message = Decoder(TargetToHub).decode(self.own.recv_multipart()[1])
            if message != Ping(0):
                return message


@pytest.fixture
def stubborn():
    hub = StubbornHub()
    try:
        yield hub
    finally:
        hub.context.destroy(linger=0)


def test_malformed_frames_of_a_hub_are_dropped_and_counted(star, stubborn: StubbornHub) -> None:
    target = star.target(f"tcp://127.0.0.1:{stubborn.port}")
    stubborn.welcome(star, target)
    stubborn.send(encode(Proposal(Tag(1), Epoch(1), 3, [100])))  # outside the vocabulary of 100
    stubborn.send(encode(Pong(5)), b"\xc1")
    assert target.receive(5.0) == [Pong(5)]  # what came beside a bad frame is somebody else's
    stubborn.send(encode(Pong(6)))
    assert target.receive(5.0) == [Pong(6)]
    assert target.num_frames_rejected == 2
    assert target.is_connected
    assert isinstance(stubborn.receive(), Fault)  # one a second: the hub is told, and not flooded
    target.send([Ping(4)])
    assert stubborn.receive() == Ping(4)


@pytest.mark.parametrize("name", ["", "x" * 201, "\0a", "ü"])
def test_a_session_that_no_socket_can_have_is_no_welcome(star, stubborn: StubbornHub, name: str) -> None:
    target = star.target(f"tcp://127.0.0.1:{stubborn.port}")
    star.until(lambda: stubborn.public.poll(0), target)
    caller, _ = stubborn.public.recv_multipart()
    stubborn.public.send_multipart(
        [caller, encode(Welcome(PROTOCOL_VERSION, LinkId(name), stubborn.own_port, "d", 4, 10.0))]
    )
    star.until(lambda: target.num_frames_rejected == 1, target)
    stubborn.welcome(star, target)


def test_a_port_that_cannot_be_dialled_is_given_up_with_a_sentence(star, stubborn: StubbornHub, monkeypatch) -> None:
    target = star.target(f"tcp://127.0.0.1:{stubborn.port}")
    star.until(lambda: stubborn.public.poll(0), target)
    caller, _ = stubborn.public.recv_multipart()
    monkeypatch.setattr(target._socket_factory, "connect_own", _no_socket)
    stubborn.public.send_multipart(
        [caller, encode(Welcome(PROTOCOL_VERSION, LinkId("s"), stubborn.own_port, "d", 4, 10.0))]
    )
    star.until(lambda: "cannot be reached: Too many open files" in target.problem, target)


def test_a_hub_that_reads_nothing_is_given_up(star, stubborn: StubbornHub, monkeypatch) -> None:
    monkeypatch.setattr(sockets, "HIGH_WATER", 2)
    target = star.target(f"tcp://127.0.0.1:{stubborn.port}")
    stubborn.own.rcvhwm = 2
    stubborn.welcome(star, target)
    for _ in range(200):
        target.send([Fault("x" * 500_000)])
    assert not target.is_connected
    assert target.problem == "the hub does not read"


def test_nonsense_on_the_public_port_is_not_an_answer(star, stubborn: StubbornHub) -> None:
    target = star.target(f"tcp://127.0.0.1:{stubborn.port}")
    star.until(lambda: stubborn.public.poll(0), target)
    caller, _ = stubborn.public.recv_multipart()
    for frames in ([b"\xc1"], [encode(Pong(1))], [encode(Fault("a")), encode(Fault("b"))]):
        stubborn.public.send_multipart([caller, *frames])
    star.until(lambda: target.num_frames_rejected == 3, target)
    stubborn.public.send_multipart([caller, encode(Fault("say that again"))])
    star.until(lambda: target.problem == "the hub did not understand: say that again", target)


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"feature_layers": (0, 9)}, "the hub's draft needs hidden states [0, 9], and this target has none to send"),
        ({"feature_window": 2**30}, "the hub wants features of 1073741824 positions, more than 4096"),
    ],
)
def test_a_hub_that_asks_for_what_a_target_has_not_is_not_served(star, stubborn: StubbornHub, terms, problem) -> None:
    target = star.target(f"tcp://127.0.0.1:{stubborn.port}")
    star.until(lambda: stubborn.public.poll(0), target)
    caller, _ = stubborn.public.recv_multipart()
    welcome = Welcome(PROTOCOL_VERSION, LinkId("s"), stubborn.own_port, "d", 4, 10.0, **terms)
    stubborn.public.send_multipart([caller, encode(welcome)])
    star.until(lambda: target.problem == problem, target)
    assert target.welcome is None


def test_a_port_that_nobody_reaches_is_given_up_with_a_sentence(star, stubborn: StubbornHub) -> None:
    target = star.target(f"tcp://127.0.0.1:{stubborn.port}")
    star.until(lambda: stubborn.public.poll(0), target)
    caller, _ = stubborn.public.recv_multipart()
    stubborn.own.close()
    stubborn.public.send_multipart(
        [caller, encode(Welcome(PROTOCOL_VERSION, LinkId("s"), stubborn.own_port, "d", 4, 10.0))]
    )
    star.until(lambda: "cannot be reached" in target.problem, target)
    assert str(stubborn.own_port) in target.problem


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [("::1", "tcp://[::1]:7"), ("[::1]", "tcp://[::1]:7"), ("127.0.0.1", "tcp://127.0.0.1:7"), ("hub", "tcp://hub:7")],
)
def test_an_address_is_told_as_it_can_be_dialled(host: str, endpoint: str) -> None:
    assert sockets.endpoint_at(host, 7) == endpoint
    assert sockets.host_of(endpoint, "the hub").strip("[]") == host.strip("[]")
