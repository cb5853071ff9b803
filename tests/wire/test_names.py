"""What peers call themselves: nobody chooses how a server knows it, and no name ends a server."""

from __future__ import annotations

import subprocess
import sys

import pytest
import zmq
from hand_made import PATIENCE_S, HandMade

from starspec.wire.codec import encode
from starspec.wire.messages import PROTOCOL_VERSION, Ask, Fault, HubToTarget, Ping, Pong, Welcome
from starspec.wire.transports.sockets import bind, make_socket, name_of

pytestmark = pytest.mark.system

SERVER = """
import struct, sys
import zmq
from starspec.wire.transports.sockets import bind, make_socket

with zmq.Context() as context, make_socket(context, zmq.ROUTER, 1000) as server:
    print(bind(server, "127.0.0.1", 0, "the test"), flush=True)
    first, _ = server.recv_multipart()
    [number] = struct.unpack(">I", first[1:])
    print(number, flush=True)
    while True:
        peer, frame = server.recv_multipart()
        server.send_multipart([peer, frame])
"""


def test_a_peer_that_claims_the_numbers_of_the_next_ones_does_not_end_the_server() -> None:
    """libzmq aborts if a peer without a name gets a number that another one has claimed as its name."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with HandMade.to(port) as one:
            one.send(b"hello")
            number = int(process.stdout.readline())
        names = [b"\0" + (number + ahead).to_bytes(4, "big") for ahead in range(1, 9)]
        peers = [HandMade.to(port, name) for name in [*names, *names, *[b""] * 16]]
        for peer in peers:
            peer.send(b"there?")
            assert peer.receive() == b"there?"
            peer.socket.close()
        assert process.poll() is None
        process.kill()


def test_peers_of_one_name_are_two_peers_and_their_name_is_read_as_they_sent_it() -> None:
    with zmq.Context() as context, make_socket(context, zmq.ROUTER, 1000) as server:
        port = bind(server, "127.0.0.1", 0, "the test")
        heard = []
        for name in (b"", b"name", b"name", b"\xff", b"\0\0\0\0\1"):
            with HandMade.to(port, name) as peer:
                peer.send(b"hello")
                assert server.poll(int(PATIENCE_S * 1000))
                heard.append(server.recv_multipart(copy=False))
    assert len({peer.bytes for peer, _ in heard}) == 5
    assert [name_of(frame) for _, frame in heard] == [b"", b"name", b"name", b"", b""]


def test_a_port_is_its_targets_alone_even_if_another_claims_the_targets_name(star) -> None:
    hub = star.hub()
    raw = star.raw(hub.endpoint)
    welcome = raw.attach()
    late = star.raw(f"tcp://127.0.0.1:{welcome.port}", welcome.link_id.encode())
    fault = late.ask(late.socket, [encode(Ping(0))], HubToTarget)
    assert fault == Fault("this port belongs to another link")
    assert raw.ask(raw.socket, [encode(Ping(7))], HubToTarget) == Pong(7)


def test_two_that_call_themselves_alike_are_both_answered_at_the_public_port(star) -> None:
    hub = star.hub()
    one, two = (star.raw(hub.endpoint, b"the same") for _ in range(2))
    assert isinstance(one.greet(), Welcome)
    assert two.greet(Ask(PROTOCOL_VERSION)) == hub.status
