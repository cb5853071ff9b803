"""What one connection can make its server hold: real sockets, and a peer that speaks ZMTP by hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from hand_made import PONG, HandMade, handshake

from starspec.audit import AuditLog
from starspec.errors import PeerLost
from starspec.gateway.hub_status import HubStatusClient
from starspec.ids import LinkId, PipeEpoch, RequestId, Tag
from starspec.policy.peer_limits import MAX_BACKLOG, UNIT_BYTES
from starspec.wire.codec import MAX_FRAME_BYTES, MAX_MESSAGES, Decoder, encode, size_of
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Ask,
    Beat,
    EngineOutput,
    Fault,
    Features,
    Landing,
    Ping,
    Pong,
    TargetToGateway,
    VerdictOf,
    Welcome,
)
from starspec.wire.transports import (
    hub_link,
    public_port,
    serving_client,
    stage_port,
    target_sockets,
    tcp_state,
    unread,
)
from starspec.wire.transports.base import Left
from starspec.wire.transports.hub_outbox import WINDOW_BYTES
from starspec.wire.transports.serving_client import ServingClient
from starspec.wire.transports.serving_server import ServingServer
from starspec.wire.transports.sockets import (
    HEARTBEAT_MS,
    MAX_MULTIPART_BYTES,
    Context,
    bind,
    make_socket,
    multiparts,
    port_of,
)
from starspec.wire.transports.stage_connection import StageConnection
from starspec.wire.transports.stage_port import StagePort
from starspec.wire.transports.unread_guard import LOOK_S, UnreadMonitor
from starspec.wire.transports.unsent import MAX_UNSENT_BYTES, STEP_BYTES

pytestmark = pytest.mark.system
PATIENCE_S = 20.0
QUIET_S = 1.4 * HEARTBEAT_MS / 1e3
LARGE = 900_000  # bytes of a frame


@pytest.fixture
def server() -> Iterator[ServingServer]:
    server = ServingServer("127.0.0.1", 0)
    yield server
    server.close()


@pytest.fixture
def little(monkeypatch) -> int:
    """A bound that tests reach soon."""
    monkeypatch.setattr(unread, "MAX_UNREAD_BYTES", 4 * 2**20)
    return 400 * 2**20


def test_a_gateway_whose_multipart_never_ends_is_cut_even_while_the_target_computes(server, little: int) -> None:
    with HandMade.to(server.port, b"endless") as peer:
        assert peer.send_until_cut(bytes(LARGE), little)
    end_s = time.monotonic() + PATIENCE_S
    while not server.num_frames_rejected:  # the thread counts it just after
        assert time.monotonic() < end_s
        assert server.receive(0.01) == []
    assert server.num_frames_rejected == 1


def test_a_connection_whose_first_message_is_not_read_yet_may_bring_little(server) -> None:
    with HandMade.to(server.port) as silent, HandMade.to(server.port) as known:
        known.send(encode(Ask(PROTOCOL_VERSION)))
        assert server.receive(PATIENCE_S)
        part = b"\x01\x01x" * (2 * unread.NEWCOMER_BYTES // 3)
        known.socket.sendall(part)
        silent.socket.sendall(part)
        end_s = time.monotonic() + PATIENCE_S
        while is_open(silent):
            assert time.monotonic() < end_s
        assert is_open(known)


def test_the_public_port_ends_a_connection_with_more_than_one_frame_at_once(star) -> None:
    hub = star.hub()
    honest = star.connected(hub.endpoint)
    with HandMade.to(int(hub.endpoint.rsplit(":", 1)[1])) as flooding:
        flooding.socket.sendall((b"\x01\x01x" * 999 + b"\x00\x01x") * 32)
        end_s = time.monotonic() + PATIENCE_S
        while is_open(flooding):
            assert time.monotonic() < end_s
    assert honest.is_connected


def test_a_target_whose_multipart_never_ends_loses_its_link(star, little: int) -> None:
    hub = star.hub()
    honest = star.connected(hub.endpoint, "honest")
    raw = star.raw(hub.endpoint)
    welcome = raw.greet()
    assert isinstance(welcome, Welcome)
    with HandMade.to(welcome.port, welcome.link_id.encode()) as peer:
        peer.send(encode(Ping(0)))
        star.until(lambda: hub.events_of("raw"), honest)
        assert peer.send_until_cut(bytes(LARGE), little)
    star.until(lambda: len(hub.events_of("raw")) == 2, honest)
    assert honest.is_connected


def test_a_second_connection_to_a_port_hides_no_endless_multipart(star, little: int) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    assert target.welcome is not None
    with HandMade.to(target.welcome.port, b"another") as peer:

        def go_on() -> None:
            target.send([Ping(1)])
            target.receive(0.0)

        assert peer.send_until_cut(bytes(LARGE), little, go_on)
    target.send([Ping(2)])
    star.until(lambda: Pong(2) in target.receive(0.01))
    assert target.num_connects == 1, "its own messages were read, so nothing of it was unread"


def test_the_public_port_cuts_what_never_ends(star, little: int) -> None:
    hub = star.hub()
    with HandMade.to(int(hub.endpoint.rsplit(":", 1)[1]), b"stranger") as peer:
        assert peer.send_until_cut(bytes(4000), little)
    star.connected(hub.endpoint)


def wait_until_ended(peer: HandMade) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while is_open(peer):
        assert time.monotonic() < end_s


def test_the_public_port_ends_a_connection_that_asks_all_the_time(star, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_port, "ASKS_PER_S", 1.0)
    monkeypatch.setattr(public_port, "ASKS_BURST", 50.0)
    hub = star.hub()
    honest = star.connected(hub.endpoint)
    port = int(hub.endpoint.rsplit(":", 1)[1])
    with HandMade.to(port) as flooding:
        for _ in range(200):  # far fewer bytes than may be unread
            with contextlib.suppress(OSError):
                flooding.send(encode(Ask(PROTOCOL_VERSION)))
        wait_until_ended(flooding)
    assert honest.is_connected


def test_strangers_at_a_target_s_own_port_are_ended_and_do_not_speak_for_the_hub(
    star, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_link, "STRANGE_PER_S", 1.0)
    monkeypatch.setattr(hub_link, "STRANGE_BURST", 50.0)
    hub = star.hub()
    target = star.connected(hub.endpoint)
    assert target.welcome is not None
    port, many = target.welcome.port, [Features(Tag(1), start, 1, bytes(MAX_FRAME_BYTES // 2)) for start in range(240)]
    with hub.computing():
        target.send(many)
        star.until(lambda: target._outbox._num_waiting > 0 and not target.receive(2 * QUIET_S))
        num_waiting = target._outbox._num_waiting
        for _ in range(8):  # each time, the hub asks whether the connection that broke was the target's
            HandMade.to(port).socket.close()
            assert all(isinstance(each, Pong) for each in target.receive(2 * LOOK_S))
        assert target._outbox._num_waiting >= num_waiting  # a Ping may have joined
        assert target.is_connected
    with HandMade.to(port) as stranger:
        with contextlib.suppress(OSError):
            stranger.socket.sendall(TINY * 200)
        star.until(lambda: not is_open(stranger), target)
    assert target.num_connects == 1


def test_a_stage_takes_nothing_of_a_connection_that_flooded_though_it_has_forgotten_it(monkeypatch) -> None:
    monkeypatch.setattr(stage_port, "MAX_PEERS", 1)
    port = StagePort("127.0.0.1", 0, None, False, AuditLog.off())
    with contextlib.closing(port), HandMade.to(port.port) as flooding, HandMade.to(port.port) as honest:
        flooding.socket.sendall((b"\x01\x00" * 4 + b"\x00\x00") * 3)
        honest.socket.sendall(TINY * 3)
        time.sleep(QUIET_S)  # then it hears both in turns
        arrived, end_s = [], time.monotonic() + PATIENCE_S
        while len(arrived) < 3 or port.num_rejected < 3:
            assert time.monotonic() < end_s
            arrived += port.receive()
        assert [len(arrival.frames) for arrival in arrived] == [1, 1, 1]


def test_after_a_long_step_a_target_reads_more(server) -> None:
    with HandMade.to(server.port) as peer:
        peer.send(encode(Ask(PROTOCOL_VERSION)))
        assert server.receive(PATIENCE_S)
        peer.socket.sendall(b"\x00\x00" * 5000)
        time.sleep(2 * QUIET_S)
        server.receive(0)
        assert server._inbox._num_held > 2048


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that speaks by hand."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        yield listener


def accept(listener: socket.socket) -> HandMade:
    return HandMade(listener.accept()[0], b"ROUTER")


@pytest.mark.parametrize("number", [0, 1])
async def test_a_gateway_ends_the_connections_to_a_target_whose_multiparts_never_end(
    listener: socket.socket, little: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_client, "SILENCE_S", 0.5)  # without heartbeats
    client = ServingClient(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    listening = asyncio.create_task(client.receive())
    with contextlib.closing(client):
        peers = [await asyncio.to_thread(accept, listener) for _ in range(2)]  # for messages, and for heartbeats
        with peers[0], peers[1]:
            assert await asyncio.to_thread(peers[number].send_until_cut, bytes(LARGE), little)
        with pytest.raises(PeerLost):
            await asyncio.wait_for(listening, PATIENCE_S)
        assert client.num_frames_rejected == 1


async def test_a_gateway_loses_no_requests_when_only_the_connection_for_heartbeats_is_ended(
    listener: socket.socket, little: int
) -> None:
    client = ServingClient(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    listening = asyncio.create_task(client.receive())
    with contextlib.closing(client):
        peers = [await asyncio.to_thread(accept, listener) for _ in range(2)]
        with peers[0], peers[1]:
            by_socket = {each.socket: each for each in peers}
            [heard], *_ = await asyncio.to_thread(select.select, by_socket, [], [], PATIENCE_S)
            beating = by_socket[heard]
            assert await asyncio.to_thread(beating.send_until_cut, bytes(LARGE), little)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(listening, QUIET_S)
        assert client.num_frames_rejected == 1


TINY = b"\x00\x01x"  # a multipart
PING = b"\x04\x07\x04PING\x00\x64"  # a heartbeat


def break_off(peer: HandMade) -> None:
    """Reset the connection."""
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, tcp_state.RESET)
    peer.socket.close()


def test_a_peer_that_brings_much_and_a_heartbeat_and_breaks_off_does_not_end_its_server() -> None:
    """If the server's queue had a bound, libzmq 4.3.5 would abort the process when the queue is read."""
    with zmq.Context() as context, make_socket(context, zmq.ROUTER, MAX_FRAME_BYTES) as router:
        port = bind(router, "127.0.0.1", 0, "the test")
        for is_reset in (True, False):
            peer = HandMade.to(port)
            peer.socket.sendall(TINY * 100 + PING + TINY * 5)  # libzmq decodes them in one go
            time.sleep(QUIET_S)
            break_off(peer) if is_reset else peer.socket.close()
            time.sleep(QUIET_S)
            while router.poll(int(QUIET_S * 1000)):
                router.recv_multipart()
        with HandMade.to(port) as honest:
            honest.send(b"hello")
            assert router.poll(int(PATIENCE_S * 1000))


async def test_a_target_that_fills_a_queue_and_breaks_off_does_not_end_the_gateway(listener: socket.socket) -> None:
    """If the queue had a bound, libzmq 4.3.5 would abort the process at the next heartbeat."""
    client = ServingClient(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    listening = asyncio.create_task(client.receive())
    with contextlib.closing(client):
        peers = [await asyncio.to_thread(accept, listener) for _ in range(2)]  # for messages, and for heartbeats
        for peer in peers:
            peer.socket.sendall(TINY * 1100 + PING)
        time.sleep(QUIET_S)  # noqa: ASYNC251 (the gateway is busy, and reads nothing)
        for peer in peers:
            break_off(peer)
        time.sleep(QUIET_S)  # noqa: ASYNC251
        with pytest.raises(PeerLost):
            await asyncio.wait_for(listening, PATIENCE_S)


def test_a_target_breaks_the_link_to_a_hub_whose_multipart_never_ends_even_while_it_computes(
    star, listener: socket.socket, little: int
) -> None:
    target = star.target(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    target.receive(0.0)
    with accept(listener) as hub:
        target.receive(0.0)
        assert hub.send_until_cut(bytes(4000), little), "the target does nothing meanwhile"
    star.until(lambda: "never ends" in target.problem, target)


BEYOND = b"\x02" + struct.pack(">Q", 2**32)  # the header of a frame that nobody takes


def test_a_target_connects_again_to_a_hub_that_sent_a_frame_beyond_the_limit(star, listener: socket.socket) -> None:
    """ZeroMQ alone never would."""
    target = star.target(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    target.receive(0.0)
    with accept(listener) as hub:
        hub.socket.sendall(BEYOND)
        target.receive(0.0)
    again: list[HandMade] = []
    listening = threading.Thread(target=lambda: again.append(accept(listener)))
    listening.start()
    star.until(lambda: not listening.is_alive(), target)
    again.pop().socket.close()


@pytest.mark.parametrize("brought", [handshake(b"ROUTER") + BEYOND, bytes(100)], ids=["beyond the limit", "no ZMTP"])
async def test_a_gateway_connects_again_to_a_target_that_was_given_up(
    listener: socket.socket, brought: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_client, "GIVEN_UP_S", 0.5)
    client = ServingClient(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
    with contextlib.closing(client):
        answers = asyncio.create_task(_go_on_receiving(client))
        for _ in range(2):  # for messages, and for heartbeats
            with await asyncio.to_thread(lambda: listener.accept()[0]) as peer, contextlib.suppress(ConnectionError):
                peer.sendall(brought)
                while await asyncio.to_thread(peer.recv, 1000):
                    pass
        for peer in [await asyncio.to_thread(accept, listener) for _ in range(2)]:
            peer.socket.close()
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)


async def _go_on_receiving(client: ServingClient) -> None:
    while True:
        with contextlib.suppress(PeerLost):
            await client.receive()


def test_a_link_whose_multipart_never_ends_is_broken(star, listener: socket.socket, little: int) -> None:
    with zmq.Context() as context, make_socket(context, zmq.ROUTER, MAX_FRAME_BYTES) as public:
        target = star.target(f"tcp://127.0.0.1:{bind(public, '127.0.0.1', 0, 'the test')}")
        star.until(lambda: public.poll(10), target)
        peer, _ = public.recv_multipart()
        welcome = Welcome(PROTOCOL_VERSION, LinkId("x"), listener.getsockname()[1], "d", 4, 10.0)
        public.send_multipart([peer, encode(welcome)])
        star.until(lambda: target.receive(0.01) or target._own is not None)
        with accept(listener) as hub:
            assert hub.send_until_cut(bytes(4000), little)
        star.until(lambda: "never ends" in target.problem, target)
        target.close()


async def test_who_asks_a_hub_for_its_status_ends_an_endless_answer(listener: socket.socket, little: int) -> None:
    client = HubStatusClient(f"tcp://127.0.0.1:{listener.getsockname()[1]}", timeout_s=PATIENCE_S)
    asking = asyncio.create_task(client())
    with contextlib.closing(client), await asyncio.to_thread(accept, listener) as hub:
        assert await asyncio.to_thread(hub.send_until_cut, bytes(LARGE), little)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def _largest(path: str) -> int:
    return int(Path(path).read_text().split()[-1])


def _kernel() -> int:
    """Bytes that the kernel holds between two ends at most."""
    return sum(map(_largest, ("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem")))


MOST_UNSENT = MAX_UNSENT_BYTES + STEP_BYTES + _kernel() + 500_000


LONG = "x" * 500_000


def test_a_target_that_does_not_read_loses_its_link_and_what_waits_for_it(star) -> None:
    hub = star.hub()
    honest = star.connected(hub.endpoint, "honest")
    welcome = star.raw(hub.endpoint).greet()
    num_sent = 0

    def has_left() -> bool:
        nonlocal num_sent
        hub.transport.send({welcome.link_id: [Fault(LONG)]})
        num_sent += 1
        return len(hub.events_of("raw")) == 2

    with HandMade.to(welcome.port, welcome.link_id.encode()) as deaf:
        deaf.send(encode(Ping(0)))
        star.until(lambda: hub.events_of("raw"), honest)
        star.until(has_left, honest)
    assert hub.events_of("raw")[1] == Left("does not read")
    star.until(lambda: not hub.transport._queues.replies, honest)
    assert (num_sent - hub.transport.stats.num_dropped) * len(LONG) < MOST_UNSENT
    assert honest.is_connected


def test_a_gateway_that_does_not_read_is_ended_and_one_that_reads_late_gets_everything(server) -> None:
    output = EngineOutput(RequestId("r"), [1], LONG)
    with zmq.Context() as context, make_socket(context, zmq.DEALER, MAX_FRAME_BYTES) as late:
        late.connect(f"tcp://127.0.0.1:{server.port}")
        assert late.poll(int(PATIENCE_S * 1000), zmq.POLLOUT)
        late.send(encode(Ask(PROTOCOL_VERSION)))
        [(peer, _)] = server.receive(PATIENCE_S)
        assert all(server.send(peer, [output]) for _ in range(60))
        with HandMade.to(server.port, b"deaf") as deaf:
            deaf.send(encode(Ask(PROTOCOL_VERSION)))
            [(deaf_peer, _)] = server.receive(PATIENCE_S)
            num_sent = next(number for number in range(1000) if not server.send(deaf_peer, [output]))
            assert num_sent * len(LONG) < MOST_UNSENT
            with contextlib.suppress(ConnectionError):  # if it reads at once, the end comes in order
                list(iter(lambda: deaf.socket.recv(2**20), b""))
        for _ in range(60):
            assert late.poll(int(PATIENCE_S * 1000))
            assert Decoder(TargetToGateway).decode(late.recv()) == output
        for _ in range(300):  # more than is held for one that does not read
            assert server.send(peer, [output])
            assert late.poll(int(PATIENCE_S * 1000))
            late.recv()


def test_a_coordinator_that_does_not_read_its_stage_is_ended() -> None:
    port = StagePort("127.0.0.1", 0, None, False, AuditLog.off())
    with contextlib.closing(port), HandMade.to(port.port, b"deaf") as deaf:
        deaf.send(encode(Beat(PipeEpoch(1))))
        until_s = time.monotonic() + PATIENCE_S
        while not (arrived := port.receive()):
            assert time.monotonic() < until_s
        answer = Landing(PipeEpoch(1), 1, [VerdictOf([7])] * 4000)
        num_sent = next(number for number in range(10_000) if not port.send(arrived[0].peer, answer))
        assert num_sent * size_of(answer) < MOST_UNSENT
        with contextlib.suppress(ConnectionError):
            list(iter(lambda: deaf.socket.recv(2**20), b""))


def test_a_stage_that_does_not_read_hidden_states_is_sent_no_more(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 8 * 2**20
    monkeypatch.setattr(target_sockets, "MAX_LARGE_BYTES", most)
    endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    context: Context = zmq.Context()
    connection = StageConnection(context, endpoint, None, False, PATIENCE_S, "this stage")
    with contextlib.closing(connection), accept(listener):
        until_s = time.monotonic() + PATIENCE_S
        while not connection.is_ready:
            assert time.monotonic() < until_s
            connection.check()
        hidden = memoryview(bytes(2**20))
        num_sent = next(number for number in range(1000) if not connection.send([b"t", b"j", hidden]))
    context.term()
    assert most // len(hidden) <= num_sent <= 1 + (most + STEP_BYTES + _kernel()) // len(hidden)


def test_features_far_beyond_the_queue_arrive_in_order_and_cost_no_link(star) -> None:
    hub = star.hub()
    target = star.connected(hub.endpoint)
    many = [Features(Tag(1), start, 1, os.urandom(MAX_FRAME_BYTES // 2)) for start in range(180)]
    for start in range(0, len(many), 60):  # as three tags that are opened at once
        target.send(many[start : start + 60])
    star.until(lambda: sum(isinstance(each, Features) for each in hub.messages_of("t")) == len(many), target)
    assert [each for each in hub.messages_of("t") if isinstance(each, Features)] == many
    assert target.num_connects == 1
    assert target.num_dropped == 0


def test_what_a_hub_does_not_take_waits_at_its_target_and_then_arrives(star) -> None:
    many = [Features(Tag(1), start, 1, os.urandom(MAX_FRAME_BYTES // 2)) for start in range(240)]
    hub = star.hub(lease_s=20 * LOOK_S)  # less than the hub computes
    target = star.connected(hub.endpoint)
    with hub.computing():
        target.send(many)
        until_s = time.monotonic() + 30 * LOOK_S
        while time.monotonic() < until_s:
            assert target.receive(0.01) == []
        waiting = sum(map(len, target._outbox._waiting))
        held = 2 * MAX_BACKLOG * UNIT_BYTES + 4 * STEP_BYTES  # by the hub, which reads twice as much at most
        assert waiting > MAX_FRAME_BYTES // 2 * len(many) - WINDOW_BYTES - held
    star.until(lambda: target.receive(0.01) or len(hub.messages_of("t")) > len(many))
    assert [each for each in hub.messages_of("t") if isinstance(each, Features)] == many
    assert target.num_connects == 1


def bound_monitor(router: zmq.Socket) -> UnreadMonitor:
    router.bind("tcp://127.0.0.1:*")
    return UnreadMonitor(router)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_what_was_read_is_counted_to_the_byte(is_encrypted: bool) -> None:
    """So a reader that never catches up, since others send much, takes no honest peer for one that floods."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        router.linger = dealer.linger = 0
        if is_encrypted:
            dealer.curve_serverkey, router.curve_secretkey = zmq.curve_keypair()
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
            router.curve_server = True
        watch = bound_monitor(router)
        dealer.connect(f"tcp://127.0.0.1:{port_of(router)}")

        def num_unread() -> int:
            watch.look()
            [connection] = watch.unread._connections.values()
            return connection.came - connection.read

        def read(frames: list[bytes]) -> None:
            dealer.send_multipart(frames)
            _, first, *rest = router.recv_multipart(copy=False)
            watch.unread.hear(first, rest)

        read([b"hello"])
        handshake = num_unread()
        for size in (0, 1, 221, 222, 223, 254, 255, 256, 70_000):
            read([bytes(size), b"", bytes(2 * size)])
            assert num_unread() == handshake
        watch.stop()


def test_a_peer_of_which_little_is_read_is_ended(crowd: Crowd, little: int) -> None:
    flooding, until_s = crowd.come(), time.monotonic() + PATIENCE_S
    crowd.say(flooding)
    flooding.socket.settimeout(0.01)
    num_cut = 0
    while not num_cut:
        assert time.monotonic() < until_s
        with contextlib.suppress(OSError):  # it is full, or broken
            flooding.socket.sendall(TINY * 20_000)
        num_cut = crowd.hear()


def test_behind_many_short_messages_only_so_many_may_wait(crowd: Crowd) -> None:
    flooding, honest = crowd.come(), crowd.come()
    crowd.say(flooding)
    crowd.say(honest)
    long = b"\x02" + struct.pack(">Q", MAX_FRAME_BYTES) + bytes(MAX_FRAME_BYTES)
    crowd.bring(honest, TINY * (unread.NUM_TELLING - 1) + long)
    crowd.bring(flooding, TINY * 2 * unread.MAX_FRAMES)
    num_cut = sum(crowd.hear() for _ in range(2 * unread.NUM_TELLING))
    assert num_cut == 1
    assert is_open(honest)


def test_what_comes_before_a_message_is_read_and_is_not_whole_counts_afterwards(crowd: Crowd) -> None:
    peer = crowd.come()
    crowd.say(peer)
    peer.send(b"hello")
    crowd.bring(peer, (b"\x03" + struct.pack(">Q", LARGE) + bytes(LARGE)) * 2)
    crowd.monitor.unread.hear(crowd.router.recv_multipart(copy=False)[1])
    crowd.monitor.unread.note_empty()
    assert crowd.monitor.look() == 0
    [connection] = crowd.monitor.unread._connections.values()
    assert connection.came - connection.read > LARGE


def test_a_descriptor_that_leads_elsewhere_is_not_touched(monkeypatch) -> None:
    monkeypatch.setattr(unread, "MAX_UNREAD_BYTES", -1)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, contextlib.ExitStack() as stack:
        router.bind("tcp://127.0.0.1:*")
        watch = unread.Unread(port_of(router), is_encrypted=False)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stranger = stack.enter_context(socket.create_connection(listener.getsockname()))
        accepted = stack.enter_context(contextlib.closing(listener.accept()[0]))
        pair = [stack.enter_context(each) for each in socket.socketpair()]
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        for each in (accepted.fileno(), stranger.fileno(), pair[0].fileno(), reading, 10**6):
            watch.note(zmq.EVENT_ACCEPTED, each)
        assert watch.look() == 0
        stranger.sendall(b"alive")
        assert accepted.recv(5) == b"alive"


@pytest.mark.parametrize(
    ("sizes", "lens"),
    [
        ([], []),
        ([1] * MAX_MESSAGES, [MAX_MESSAGES]),
        ([1] * (MAX_MESSAGES + 1), [MAX_MESSAGES, 1]),
        ([MAX_MULTIPART_BYTES // 2] * 5, [2, 2, 1]),
        ([MAX_MULTIPART_BYTES + 1] * 2 + [1], [1, 1, 1]),
        ([1, MAX_MULTIPART_BYTES], [1, 1]),
    ],
)
def test_what_travels_together_has_a_bound_in_frames_and_in_bytes(sizes: list[int], lens: list[int]) -> None:
    frames = [bytes(size) for size in sizes]
    parts = list(multiparts(frames))
    assert [len(part) for part in parts] == lens
    assert [frame for part in parts for frame in part] == frames


class Crowd:
    """A server's socket with places for four connections, and the peers that come to it."""

    def __init__(self, router: zmq.Socket, stack: ExitStack) -> None:
        self.router = router
        self.port = bind(router, "127.0.0.1", 0, "the test")
        self.monitor = UnreadMonitor(router, zmq.EVENT_ACCEPTED, most=4)
        self._stack = stack
        stack.callback(self.monitor.stop)

    def come(self, address: str = "127.0.0.1") -> HandMade:
        """A connection that the server has noticed."""
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S, (address, 0))
        self._stack.callback(connection.close)
        while not list(self.monitor.events()):  # others may be told to end before it
            assert self.monitor.socket.poll(int(PATIENCE_S * 1000))
        self.monitor.look()
        return HandMade(connection)

    def say(self, peer: HandMade) -> None:
        """The server reads a message of this peer."""
        peer.send(b"hello")
        self.hear()

    def bring(self, peer: HandMade, data: bytes) -> None:
        """The server has noticed these bytes of the peer, and reads nothing of them."""
        self.monitor.look()
        num_there = self._num_there()
        peer.socket.sendall(data)
        until_s = time.monotonic() + PATIENCE_S
        while self._num_there() < num_there + len(data):
            assert time.monotonic() < until_s
            self.monitor.look()

    def _num_there(self) -> int:
        return sum(each.came for each in self.monitor.unread._connections.values())

    def hear(self) -> int:
        """The server reads a message, and looks. Returns: connections that were ended."""
        assert self.router.poll(int(PATIENCE_S * 1000))
        self.monitor.unread.hear(self.router.recv_multipart(copy=False)[1])
        return self.monitor.look()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    with zmq.Context() as context, make_socket(context, zmq.ROUTER, MAX_FRAME_BYTES) as router, ExitStack() as stack:
        yield Crowd(router, stack)


def is_open(peer: HandMade) -> bool:
    peer.socket.settimeout(0.2)
    try:
        while peer.socket.recv(1000):
            pass
    except TimeoutError:
        return True
    except ConnectionError:
        pass
    return False


def test_one_connection_too_many_ends_a_silent_one_of_the_address_with_the_most(crowd: Crowd) -> None:
    honest = crowd.come()
    first, second, silent = (crowd.come("127.0.0.2") for _ in range(3))
    crowd.say(first)
    crowd.say(second)
    newcomer = crowd.come()
    assert [is_open(each) for each in (honest, first, second, silent, newcomer)] == [True, True, True, False, True]
    assert is_open(crowd.come("127.0.0.2"))
    assert [is_open(each) for each in (honest, first, second, newcomer)] == [True, False, True, True]


def test_an_address_alone_has_all_places_and_the_silent_ones_give_way(crowd: Crowd) -> None:
    talking = [crowd.come() for _ in range(3)]
    for each in talking:
        crowd.say(each)
    silent = [crowd.come() for _ in range(5)]
    assert all(map(is_open, talking))
    assert [is_open(each) for each in silent] == [False] * 4 + [True]


def test_a_connection_that_has_only_heartbeats_is_not_silent(crowd: Crowd) -> None:
    beating = crowd.come()
    for _ in range(unread.SETTLED_LOOKS + 1):
        crowd.monitor.look()
    beating.socket.sendall(b"\x04\x07\x04PING\x00\x00")
    assert beating.receive() == PONG
    crowd.monitor.look()
    others = [crowd.come() for _ in range(4)]
    assert is_open(beating)
    assert [is_open(each) for each in others] == [False, True, True, True]


def test_a_connection_with_heartbeats_alone_is_not_ended_for_them(crowd: Crowd) -> None:
    """A gateway has one at each target, for as long as it runs."""
    crowd.monitor.unread._limits = unread.Limits(newcomer=4096)  # soon reached
    beating = crowd.come()
    for _ in range(2 * 4096 // (8 * len(PING))):
        beating.socket.sendall(8 * PING)
        for _ in range(8):
            assert beating.receive() == PONG
        crowd.monitor.look()
    assert is_open(beating)


def test_only_a_connection_over_which_a_message_came_moves_anything(crowd: Crowd) -> None:
    """So nobody without a key makes a stage look as if hidden states arrived."""
    part = b"\x03" + struct.pack(">Q", 4 * unread.MOVED_BYTES) + bytes(4 * unread.MOVED_BYTES)
    watched = crowd.monitor.unread
    stranger, peer = crowd.come(), crowd.come()
    crowd.monitor.look()
    crowd.bring(stranger, part)
    assert watched.num_moves == 0
    crowd.say(peer)
    crowd.bring(peer, part)
    assert watched.num_moves > 0


def test_what_waits_for_a_hub_that_is_gone_is_freed(star) -> None:
    hub = star.hub_process()
    target = star.connected(hub.endpoint)
    hub.signal(signal.SIGSTOP)
    target.send([Features(Tag(1), start, 1, bytes(MAX_FRAME_BYTES // 2)) for start in range(120)])
    assert target._outbox._num_waiting > 0
    hub.signal(signal.SIGKILL)
    star.until(lambda: not target.is_connected, target)
    assert target._outbox._num_waiting == 0
