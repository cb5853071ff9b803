"""The link between gateways and a target, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import pytest
import zmq
from hand_made import READY, HandMade, handshake
from structlog.testing import capture_logs

from starspec.errors import ConfigError, PeerLost, PeerProtocolError
from starspec.gateway.hub_status import HubStatusClient
from starspec.ids import RequestId
from starspec.log_limit import LINES
from starspec.policy.newcomers import SHUT_S
from starspec.policy.peer_limits import SERVING_BURST, SERVING_PER_S
from starspec.sampling.spec import SamplingSpec
from starspec.stats import HubStats
from starspec.wire.codec import MAX_FRAME_BYTES, Decoder, encode
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Ask,
    EngineOutput,
    HubStatus,
    Refused,
    Rejected,
    RequestSpec,
    Submit,
    TargetToGateway,
)
from starspec.wire.transports import serving_client, sockets
from starspec.wire.transports.serving_client import PROBE_SILENCE_MS, READ_BYTES, ServingClient
from starspec.wire.transports.serving_server import MAX_FRAMES, ServingServer

SPEC = RequestSpec(prompt_token_ids=[1, 2, 3], sampling=SamplingSpec(), max_tokens=4)
SUBMIT = Submit(RequestId("r"), SPEC)
PATIENCE_S = 20.0


def output(number: int) -> EngineOutput:
    return EngineOutput(RequestId("r"), [number], str(number))


@pytest.fixture
def server() -> Iterator[ServingServer]:
    server = ServingServer("127.0.0.1", 0)
    yield server
    server.close()


@asynccontextmanager
async def client_of(server: ServingServer) -> AsyncIterator[ServingClient]:
    """A connected client: the server has heard its first Ask."""
    client = ServingClient(f"tcp://127.0.0.1:{server.port}")
    try:
        await connected(client)
        yield client
    finally:
        client.close()


async def connected(client: ServingClient) -> None:
    listening = asyncio.create_task(client.receive())
    async with asyncio.timeout(PATIENCE_S):
        while not client.is_connected:
            await asyncio.wait({listening}, timeout=0.01)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


async def heard(server: ServingServer) -> list[tuple[bytes, object]]:
    return await asyncio.to_thread(server.receive, PATIENCE_S)


async def test_long_frames_are_decoded_one_in_a_turn_of_the_loop(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Frame(NamedTuple):
        bytes: bytes

    async with client_of(server) as client:
        long = encode(EngineOutput(RequestId("r"), [1], "x" * 2 * READ_BYTES))
        arrived = [[Frame(long)] for _ in range(20)]

        def waiting(of: object, most: float) -> Iterator[list[Frame]]:
            while of is client._socket and arrived:
                yield arrived.pop()

        monkeypatch.setattr(serving_client, "_waiting", waiting)
        monkeypatch.setattr(client._unread, "hear", lambda frame: None)

        async def read() -> None:
            for _ in range(20):
                await client.receive()

        reading, most, last = asyncio.create_task(read()), 0, 20
        while not reading.done():
            await asyncio.sleep(0)
            most, last = max(most, last - len(arrived)), len(arrived)
        assert most == 1


async def test_what_a_target_says_just_before_it_goes_is_heard_before_its_end(
    server: ServingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both come between the client's look at its messages and its look at the connection."""
    async with client_of(server) as client:
        client.send(SUBMIT)
        ((peer, _), *_) = await heard(server)
        notice, running = client._notice, [server]

        def notice_after_the_end() -> None:
            if running:
                server.send(peer, [output(1)])
                running.pop().close()
                assert zmq.Socket.shadow(client._monitor.underlying).poll(PATIENCE_S * 1e3)
            notice()

        monkeypatch.setattr(client, "_notice", notice_after_the_end)
        assert await client.receive() == output(1)
        with pytest.raises(PeerLost):
            await asyncio.wait_for(client.receive(), PATIENCE_S)


async def test_a_request_goes_in_and_its_outputs_come_out_in_order(server: ServingServer) -> None:
    async with client_of(server) as client:
        client.send(SUBMIT)
        [(peer, message)] = await heard(server)
        assert message == SUBMIT
        assert server.send(peer, [output(1), output(2)])
        assert server.send(peer, [output(3)])
        assert [await client.receive() for _ in range(3)] == [output(1), output(2), output(3)]
        client.send(Abort(RequestId("r")))
        assert await heard(server) == [(peer, Abort(RequestId("r")))]


async def test_a_round_of_more_outputs_than_a_multipart_holds_arrives_whole(server: ServingServer) -> None:
    async with client_of(server) as client:
        client.send(SUBMIT)
        ((peer, _),) = await heard(server)
        assert server.send(peer, [output(number) for number in range(2500)])
        received = [await client.receive() for _ in range(2500)]
        assert [each.token_ids for each in received] == [[number] for number in range(2500)]
        assert client.is_connected


async def test_gateways_do_not_hear_each_other(server: ServingServer) -> None:
    async with client_of(server) as one, client_of(server) as two:
        one.send(Submit(RequestId("one"), SPEC))
        [(peer_of_one, _)] = await heard(server)
        two.send(Submit(RequestId("two"), SPEC))
        [(peer_of_two, _)] = await heard(server)
        assert peer_of_one != peer_of_two
        server.send(peer_of_two, [output(2)])
        server.send(peer_of_one, [output(1)])
        assert await one.receive() == output(1)
        assert await two.receive() == output(2)


async def test_a_target_that_goes_is_noticed_once_and_one_that_comes_back_is_found(server: ServingServer) -> None:
    async with client_of(server) as client:
        server.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerLost, match=r"the connection to the target at tcp://127\.0\.0\.1"):
                await client.receive()
            assert not client.is_connected
            client.send(SUBMIT)  # dropped: the next target must not get it
            again = ServingServer("127.0.0.1", server.port)
            try:
                await connected(client)
                client.send(Ask(PROTOCOL_VERSION))
                [(peer, message)] = await heard(again)
                assert message == Ask(PROTOCOL_VERSION)
                again.send(peer, [output(1)])
                assert await client.receive() == output(1)
            finally:
                again.close()


async def test_what_a_target_said_before_it_went_is_still_heard(server: ServingServer) -> None:
    async with client_of(server) as client:
        client.send(Ask(PROTOCOL_VERSION))
        [(peer, _)] = await heard(server)
        server.send(peer, [output(1)])
        assert await client.receive() == output(1)
        server.close()
        with pytest.raises(PeerLost):
            await client.receive()


async def test_a_gateway_that_went_is_noticed_when_it_is_spoken_to(server: ServingServer) -> None:
    async with client_of(server) as client:
        client.send(Ask(PROTOCOL_VERSION))
        [(peer, _)] = await heard(server)
    give_up_at = time.monotonic() + PATIENCE_S
    while server.send(peer, [output(1)]):
        assert time.monotonic() < give_up_at
        server.receive(0.01)
    assert server.num_dropped == 1
    assert not server.send(b"nobody", [output(1)])
    assert server.send(b"nobody", [])


async def test_a_target_that_reads_nothing_is_given_up(server: ServingServer, monkeypatch) -> None:
    monkeypatch.setattr(sockets, "HIGH_WATER", 2)
    stubborn = ServingServer("127.0.0.1", 0)
    try:
        async with client_of(stubborn) as client:
            large = Submit(RequestId("r"), RequestSpec([1] * 400_000, SamplingSpec()))
            for _ in range(200):
                client.send(large)
            assert not client.is_connected
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(PeerLost):
                    await client.receive()
                await connected(client)
    finally:
        stubborn.close()


def raw_gateway(server: ServingServer, context: zmq.Context) -> zmq.Socket:
    raw = context.socket(zmq.DEALER)
    raw.linger = 0
    raw.connect(f"tcp://127.0.0.1:{server.port}")
    return raw


def test_a_request_that_does_not_decode_is_rejected_by_name_and_noise_is_counted(server: ServingServer) -> None:
    bad = msgspec.to_builtins(SUBMIT)
    bad["spec"]["sampling"]["temperature"] = -1
    with zmq.Context() as context, raw_gateway(server, context) as raw:
        for frames in ([b"\xc1"], [msgspec.msgpack.encode(bad)], [b""], [encode(Ask(PROTOCOL_VERSION))]):
            raw.send_multipart(frames)
        messages = []
        while not messages:
            messages = server.receive(PATIENCE_S)
        assert [message for _, message in messages] == [Ask(PROTOCOL_VERSION)]
        assert raw.poll(int(PATIENCE_S * 1000))
        rejected = Decoder(TargetToGateway).decode(raw.recv())
    assert isinstance(rejected, Rejected)
    assert rejected.request_id == "r"
    assert "temperature must be at least 0" in rejected.message
    assert server.num_frames_rejected == 3


def test_a_gateway_of_another_version_is_refused_in_a_sentence_and_the_log_says_so_once(server: ServingServer) -> None:
    with zmq.Context() as context, raw_gateway(server, context) as raw, capture_logs() as logs:
        for frame in (encode(Ask(3)), msgspec.msgpack.encode({"type": "ask", "protocol_version": 3, "why": "later"})):
            raw.send(frame)
            while not raw.poll(10):
                assert server.receive(0.01) == []
            refused = Decoder(TargetToGateway).decode(raw.recv())
            assert isinstance(refused, Refused)
            assert refused.code == "version"
            assert "this target speaks protocol version 2, the gateway 3: install the same" in refused.reason
    assert [each["event"] for each in logs] == ["a gateway is refused"]
    assert server.num_frames_rejected == 0


def test_a_gateway_whose_version_alternates_does_not_fill_the_log() -> None:
    server = ServingServer("127.0.0.1", 0, clock=lambda: 0.0)
    with zmq.Context() as context, raw_gateway(server, context) as raw, capture_logs() as logs:
        for number in range(2 * LINES):
            raw.send(encode(Ask(PROTOCOL_VERSION + 1 + number % 2)))
            while not raw.poll(10):
                assert server.receive(0.01) == []
            raw.recv()
    server.close()
    assert len(logs) == LINES


def test_a_target_reads_so_much_in_a_time_and_the_rest_waits() -> None:
    now = [0.0]
    server = ServingServer("127.0.0.1", 0, clock=lambda: now[0])
    with zmq.Context() as context, raw_gateway(server, context) as raw:
        raw.send(encode(Ask(PROTOCOL_VERSION)))
        assert server.receive(PATIENCE_S)
        large = bytes(MAX_FRAME_BYTES)
        for number in range(80):
            raw.send(large)
            if number % 8 == 0:
                server.receive(0.01)
        ends_at = time.monotonic() + PATIENCE_S
        while server.num_frames_rejected < 32:  # beyond what may wait
            assert time.monotonic() < ends_at
            server.receive(0.01)
        num_before = server.num_frames_rejected
        for _ in range(20):
            server.receive(0.01)
        assert server.num_frames_rejected == num_before, "the burst is over"
        now[0] += 1.0
        while server.num_frames_rejected < num_before + 10:
            assert time.monotonic() < ends_at
            server.receive(0.01)
    server.close()


def test_of_the_asks_of_one_gateway_one_counts_in_a_turn() -> None:
    server = ServingServer("127.0.0.1", 0)
    with zmq.Context() as context, raw_gateway(server, context) as raw:
        raw.send_multipart([encode(Ask(PROTOCOL_VERSION))] * 20)
        messages = []
        while not messages:
            messages = server.receive(PATIENCE_S)
        assert [message for _, message in messages] == [Ask(PROTOCOL_VERSION)]
        for number in (3, 3, 4):
            raw.send_multipart([encode(Ask(number))] * 5)
            while not raw.poll(10):
                assert server.receive(0.0) == []
            assert isinstance(Decoder(TargetToGateway).decode(raw.recv()), Refused)
            assert not raw.poll(50)
    server.close()


@pytest.mark.parametrize(
    "frame", [encode(Ask(PROTOCOL_VERSION)), b"\xc1" * 50, encode(SUBMIT)], ids=["ask", "bad", "ok"]
)
def test_a_flood_of_one_gateway_causes_bounded_work_and_the_others_get_through(frame: bytes) -> None:
    """Time stands still, so the flood has one burst, which the first turns use up."""
    now = [0.0]
    server = ServingServer("127.0.0.1", 0, clock=lambda: now[0])
    decoded: list[bytes] = []
    decode = server._decoder.decode
    server._decoder.decode = lambda frame: decoded.append(frame) or decode(frame)  # type: ignore[method-assign]
    with zmq.Context() as context, raw_gateway(server, context) as raw, raw_gateway(server, context) as honest:
        raw.send(encode(Ask(PROTOCOL_VERSION)))
        assert server.receive(PATIENCE_S)
        for _ in range(900):
            raw.send_multipart([frame] * MAX_FRAMES)
        while server.num_frames_rejected < 5_000:  # of those that the burst of reading lets in
            server.receive(1.0)
        assert len(decoded) <= SERVING_BURST
        honest.send(encode(Submit(RequestId("honest"), SPEC)))
        heard = []
        while not any(each.request_id == "honest" for _, each in heard if isinstance(each, Submit)):
            now[0] += 0.01
            heard = server.receive(0.01)
            assert now[0] < 5.0
        assert len(decoded) <= SERVING_BURST + SERVING_PER_S * now[0]
    server.close()


def test_multiparts_of_very_many_frames_are_dropped_and_keep_nobody_waiting() -> None:
    """Time stands still, so what is read has one burst, which the others do not use up."""
    server = ServingServer("127.0.0.1", 0, clock=lambda: 0.0)
    flood = (b"\x01\x01x" * 999 + b"\x00\x01x") * 4
    with zmq.Context() as context, raw_gateway(server, context) as honest, contextlib.ExitStack() as stack:
        others = [stack.enter_context(HandMade.to(server.port)) for _ in range(20)]
        for other in others:
            other.socket.sendall(flood)
        ends_at = time.monotonic() + PATIENCE_S
        while server.num_frames_rejected < len(others) * 1000:
            assert time.monotonic() < ends_at
            server.receive(0.01)
        honest.send(encode(Ask(PROTOCOL_VERSION)))
        while not server.receive(0.01):
            assert time.monotonic() < ends_at
    server.close()


def test_a_connection_that_floods_is_ended_and_no_other_of_its_address_begins_for_a_while() -> None:
    now = [0.0]
    server = ServingServer("127.0.0.1", 0, clock=lambda: now[0])
    with zmq.Context() as context, raw_gateway(server, context) as flooding, contextlib.ExitStack() as stack:
        with flooding.get_monitor_socket(zmq.EVENT_DISCONNECTED) as ended:
            for _ in range(10):
                flooding.send_multipart([b"x"] * 1000)
            flooding.send(encode(Ask(PROTOCOL_VERSION)))
            ends_at = time.monotonic() + PATIENCE_S
            while not ended.poll(10):
                assert not server.receive(0.01)
                assert time.monotonic() < ends_at
        flooding.disable_monitor()
        stack.callback(server.close)
        with (
            socket.create_connection(("127.0.0.1", server.port)) as refused,
            pytest.raises(ConnectionError),  # after HANDSHAKE_MS
        ):
            HandMade(refused)
        now[0] += SHUT_S + 1.0
        HandMade.to(server.port).socket.close()


CHURNING_S = 2.0


def _churn(port: int, is_over: threading.Event, num_begun: list[int]) -> None:
    """Begin connections that bring a full queue of multiparts of a thousand frames, and break off."""
    multiparts = (b"\x01\x01x" * 999 + b"\x00\x01x") * 32
    while not is_over.is_set():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(0.2)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
            connection.sendall(handshake())
            came = b""
            while READY not in came and (part := connection.recv(1000)):
                came += part
            num_begun.append(READY in came)
            connection.sendall(multiparts)
            is_over.wait(0.05)


def test_connections_that_begin_all_the_time_are_few_and_keep_nobody_waiting(server: ServingServer) -> None:
    is_over, num_begun = threading.Event(), []
    churning = [threading.Thread(target=_churn, args=(server.port, is_over, num_begun)) for _ in range(10)]
    longest_s = 0.0
    with zmq.Context() as context, raw_gateway(server, context) as honest:
        honest.send(encode(Ask(PROTOCOL_VERSION)))
        assert server.receive(PATIENCE_S)
        began_s = time.monotonic()
        for each in churning:
            each.start()
        while (asked_s := time.monotonic()) < began_s + CHURNING_S:
            honest.send(encode(Ask(PROTOCOL_VERSION)))
            while not server.receive(0.01):
                assert time.monotonic() < asked_s + PATIENCE_S
            longest_s = max(longest_s, time.monotonic() - asked_s)
        is_over.set()
        for each in churning:
            each.join()
    assert longest_s < 2.0
    assert sum(num_begun) < 50, "as many as begin before the first one is read, and some more"


ANSWERING = """
from starspec.wire.messages import EngineOutput, Submit
from starspec.wire.transports.serving_server import ServingServer

server = ServingServer("127.0.0.1", 0)
print(server.port, flush=True)
while True:
    for gateway, message in server.receive(1.0):
        if isinstance(message, Submit):
            server.send(gateway, [EngineOutput(message.request_id, [1], "1")])
"""


@pytest.fixture
def stoppable() -> Iterator[subprocess.Popen[str]]:
    """A target that answers each request with a token, in a process of its own; its first line is its port."""
    with subprocess.Popen([sys.executable, "-c", ANSWERING], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.system
async def test_a_target_that_stands_still_for_a_while_keeps_its_requests_and_one_that_does_not_go_on_is_lost(
    stoppable: subprocess.Popen[str],
) -> None:
    assert stoppable.stdout is not None
    client = ServingClient(f"tcp://127.0.0.1:{int(stoppable.stdout.readline())}")
    try:
        await connected(client)
        listening = asyncio.create_task(client.receive())
        stoppable.send_signal(signal.SIGSTOP)
        client.send(SUBMIT)
        await asyncio.sleep(2 * sockets.HEARTBEAT_TIMEOUT_MS / 1e3)  # longer than a hub may be silent
        assert (client.is_connected, client.is_answering) == (True, False)
        stoppable.send_signal(signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            assert await listening == output(1)
            listening = asyncio.create_task(client.receive())
            while not client.is_answering:
                await asyncio.wait({listening}, timeout=0.01)
        listening.cancel()
        stoppable.send_signal(signal.SIGSTOP)
        with pytest.raises(PeerLost, match="broke"):
            async with asyncio.timeout(PATIENCE_S):
                await client.receive()
    finally:
        client.close()


async def test_a_target_that_computes_for_long_is_answering(server: ServingServer) -> None:
    async with client_of(server) as client:
        listening = asyncio.create_task(client.receive())
        await asyncio.sleep(3 * PROBE_SILENCE_MS / 1e3)  # it reads nothing meanwhile
        assert client.is_answering
        listening.cancel()


FLOOD = """
import threading, zmq
from starspec.wire.transports.serving_server import ServingServer

server = ServingServer("127.0.0.1", 0)
with zmq.Context() as context:
    raw = context.socket(zmq.DEALER)
    raw.linger, raw.sndhwm = 0, 0
    raw.connect(f"tcp://127.0.0.1:{server.port}")
    raw.send(b"x")
    server.receive(20.0)
    for _ in range(20_000):
        raw.send(b"x" * 100)
    threading.Event().wait(0.5)  # until the target's queue is full
    raw.close(linger=0)
threading.Event().wait(1.5)  # longer than the time between two heartbeats
while server.receive(0.05) or server.num_frames_rejected < 100:
    pass
server.close()
"""


def test_a_gateway_that_floods_a_busy_target_and_leaves_does_not_end_it() -> None:
    ended = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_malformed_frames_of_a_target_are_counted_and_dropped() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as raw, capture_logs() as logged:
        raw.linger = 0
        port = raw.bind_to_random_port("tcp://127.0.0.1")
        client = ServingClient(f"tcp://127.0.0.1:{port}")
        try:
            await connected(client)
            client.send(Ask(PROTOCOL_VERSION))
            peer, _ = await asyncio.to_thread(raw.recv_multipart)
            raw.send_multipart([peer, encode(Ask(PROTOCOL_VERSION))])
            raw.send_multipart([peer, encode(output(1))])
            assert await client.receive() == output(1)
            assert client.num_frames_rejected == 1
            [line] = logged
            assert line["event"] == "a target sends what this gateway cannot read"
            assert line["why"].startswith("frame of ")
        finally:
            client.close()
            client.close()


def test_receive_waits_no_longer_than_told(server: ServingServer) -> None:
    began = time.monotonic()
    assert server.receive(0.0) == []
    assert server.receive(0.05) == []
    assert 0.04 < time.monotonic() - began < 2.0


def test_a_serving_port_in_use_is_a_sentence_with_the_port(server: ServingServer) -> None:
    with pytest.raises(ConfigError, match=f"the target cannot listen on 127.0.0.1:{server.port}: the port is in use"):
        ServingServer("127.0.0.1", server.port)


async def test_a_hub_is_asked_for_its_status_and_its_absence_is_an_error(star) -> None:
    hub = star.hub()
    asker = HubStatusClient(hub.endpoint, timeout_s=PATIENCE_S)
    try:
        assert await asker() == HubStatus("echo", HubStats())
        hub.close()
        with pytest.raises(PeerLost, match=f"nobody listens at {hub.endpoint}"):
            await asker()
    finally:
        asker.close()


def test_an_asker_that_is_closed_does_not_wait_for_an_answer() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        silent.linger = 0
        asker = HubStatusClient(f"tcp://127.0.0.1:{silent.bind_to_random_port('tcp://127.0.0.1')}", timeout_s=60.0)

        async def leave() -> None:
            question = asyncio.create_task(asker())
            await asyncio.to_thread(silent.recv_multipart)
            asker.close()
            await asyncio.wait([question], timeout=PATIENCE_S)
            assert question.done()

        leaving = threading.Thread(target=asyncio.run, args=(leave(),), daemon=True)  # it may never come back
        leaving.start()
        leaving.join(PATIENCE_S)
        assert not leaving.is_alive()


async def test_what_answers_and_is_no_hub_is_an_error_that_says_so(server: ServingServer) -> None:
    endpoint = f"tcp://127.0.0.1:{server.port}"
    asker = HubStatusClient(endpoint, timeout_s=PATIENCE_S)
    try:
        asking = asyncio.create_task(asker())
        ((peer, _), *_) = await heard(server)
        server.send(peer, [output(1)])
        with pytest.raises(PeerProtocolError, match=f"what answers at {endpoint} is not a hub: frame of "):
            await asking
    finally:
        asker.close()


async def test_a_gateway_hears_that_a_hub_listens_where_it_takes_a_target_to_be(star) -> None:
    client = ServingClient(star.hub().endpoint)
    try:
        await connected(client)
        client.send(Ask(PROTOCOL_VERSION))
        assert await asyncio.wait_for(client.receive(), PATIENCE_S) == HubStatus("echo", HubStats())
    finally:
        client.close()


async def test_an_answer_that_is_no_status_is_an_error() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as raw:
        raw.linger = 0
        asker = HubStatusClient(f"tcp://127.0.0.1:{raw.bind_to_random_port('tcp://127.0.0.1')}", timeout_s=PATIENCE_S)
        answer = msgspec.msgpack.encode({"type": "fault", "reason": "no"})

        def reply() -> None:
            caller, _ = raw.recv_multipart()
            raw.send_multipart([caller, answer])

        try:
            replying = asyncio.create_task(asyncio.to_thread(reply))
            with pytest.raises(PeerProtocolError, match="answered Ask with Fault"):
                await asker()
            await replying
        finally:
            asker.close()
