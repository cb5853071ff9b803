"""A lab between real sockets: bytes, times, partitions, bounds, counters."""

from __future__ import annotations

import socket
import threading
import time
from random import Random

import pytest
from lab_toys import EchoServer, connect, read

from starspec.config.lab import LabLink, LinkShape, Partition
from starspec.errors import ConfigError
from starspec.lab import Lab, LabThread

pytestmark = pytest.mark.system  # it depends on real time

SHORT_S = 0.3  # in which something would arrive, if it could


def round_trip_ms(connection: socket.socket) -> float:
    begun_s = time.perf_counter()
    connection.sendall(b"x")
    assert read(connection, 1) == b"x"
    return (time.perf_counter() - begun_s) * 1e3


def gets_nothing(connection: socket.socket) -> bool:
    connection.settimeout(SHORT_S)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(30.0)


@pytest.mark.parametrize(
    "shape",
    [
        LinkShape(),
        LinkShape(delay_ms=5, jitter_ms=4),
        LinkShape(delay_ms=2, jitter_ms=2, mbit_s=200, loss=0.01, stall_ms=20),
    ],
    ids=["plain", "jitter", "everything"],
)
def test_every_byte_arrives_once_and_in_order_and_so_does_the_end(echo: EchoServer, shape: LinkShape) -> None:
    sent = Random(1).randbytes(3_000_000)
    with LabThread(LabLink(to=echo.endpoint, shape=shape)) as lab, connect(lab.endpoint()) as client:

        def send() -> None:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        assert read(client, len(sent) + 1) == sent
        sending.join()
        [traffic] = lab.traffic()
    assert (traffic.forth.num_bytes, traffic.back.num_bytes) == (len(sent), len(sent))
    assert traffic.num_connections == 1
    assert (traffic.forth.num_losses > 0) == (shape.loss > 0)


@pytest.mark.parametrize("delay_ms", [0.0, 20.0, 80.0])
def test_each_direction_takes_its_delay_and_hardly_more(echo: EchoServer, delay_ms: float) -> None:
    """The best of ten is what the lab does; the others are what the machine does beside it."""
    link = LabLink(to=echo.endpoint, shape=LinkShape(delay_ms=delay_ms))
    with LabThread(link) as lab, connect(lab.endpoint()) as client:
        first_ms = round_trip_ms(client)
        best_ms = min(round_trip_ms(client) for _ in range(10))
    assert 2 * delay_ms <= best_ms <= 2 * delay_ms + 2.0
    assert first_ms >= 4 * delay_ms  # connecting takes a round trip of its own


def test_directions_may_differ(echo: EchoServer) -> None:
    link = LabLink(to=echo.endpoint, shape=LinkShape(delay_ms=5), back=LinkShape(delay_ms=40))
    with LabThread(link) as lab, connect(lab.endpoint()) as client:
        round_trip_ms(client)
        assert 45.0 <= min(round_trip_ms(client) for _ in range(5)) <= 48.0


def test_bandwidth_bounds_what_passes(echo: EchoServer) -> None:
    sent = bytes(500_000)
    with LabThread(LabLink(to=echo.endpoint, shape=LinkShape(mbit_s=20))) as lab, connect(lab.endpoint()) as client:
        begun_s = time.perf_counter()
        threading.Thread(target=client.sendall, args=(sent,)).start()
        assert read(client, len(sent)) == sent
        assert 0.2 <= time.perf_counter() - begun_s <= 0.8  # 4 Mbit at 20 Mbit/s, both ways at the same time


def test_a_partition_holds_everything_and_healing_lets_it_pass(echo: EchoServer) -> None:
    with LabThread(LabLink(to=echo.endpoint)) as lab, connect(lab.endpoint()) as client:
        round_trip_ms(client)
        lab.partition()
        client.sendall(b"held")
        assert gets_nothing(client)
        with connect(lab.endpoint()) as newcomer:
            newcomer.sendall(b"new")
            assert gets_nothing(newcomer)
            lab.heal()
            assert (read(client, 4), read(newcomer, 3)) == (b"held", b"new")


def test_a_cut_resets_connections_and_refuses_others_until_it_heals(echo: EchoServer) -> None:
    with LabThread(LabLink(to=echo.endpoint)) as lab, connect(lab.endpoint()) as client:
        round_trip_ms(client)
        lab.partition(cut=True)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        with pytest.raises(ConnectionResetError), connect(lab.endpoint()) as refused:
            assert refused.recv(1) == b"the lab resets it"
        lab.heal()
        with connect(lab.endpoint()) as newcomer:
            round_trip_ms(newcomer)


def test_partitions_begin_and_end_at_the_stated_times(echo: EchoServer) -> None:
    partitions = (Partition(start_s=0.3, stop_s=0.9), Partition(start_s=1.2, stop_s=1.3, cut=True))
    with LabThread(LabLink(to=echo.endpoint, partitions=partitions)) as lab, connect(lab.endpoint()) as client:
        ready_s = time.perf_counter()
        longest_ms, now_s = 0.0, 0.0
        while now_s < 1.0:
            longest_ms = max(longest_ms, round_trip_ms(client))
            now_s = time.perf_counter() - ready_s
        assert 500.0 < longest_ms < 900.0  # the first partition held it for 600 ms
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert 1.1 < time.perf_counter() - ready_s < 1.8


def test_a_delay_can_be_changed_while_bytes_pass(echo: EchoServer) -> None:
    with LabThread(LabLink(to=echo.endpoint)) as lab, connect(lab.endpoint()) as client:
        round_trip_ms(client)
        lab.reshape(LinkShape(delay_ms=30))
        assert min(round_trip_ms(client) for _ in range(3)) >= 60.0
        lab.reshape(LinkShape())
        assert min(round_trip_ms(client) for _ in range(10)) < 30.0


def test_a_server_that_reads_nothing_stops_its_client(echo: EchoServer) -> None:
    """The lab holds a window, and the kernel's own buffers hold some more; the rest stays with the client."""
    echo.is_reading.clear()
    shape = LinkShape(delay_ms=5, mbit_s=100)  # a window of 125 kB
    with LabThread(LabLink(to=echo.endpoint, shape=shape)) as lab, connect(lab.endpoint()) as client:
        client.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.sendall(bytes(64 * 2**20))
        [traffic] = lab.traffic()
    assert traffic.forth.num_bytes < 16 * 2**20


def test_a_server_that_is_gone_ends_the_connection(echo: EchoServer) -> None:
    echo.close()
    with LabThread(LabLink(to=echo.endpoint)) as lab:
        endpoint = lab.endpoint()
        with pytest.raises(ConnectionResetError), connect(endpoint) as client:
            assert client.recv(1) == b"the lab resets it"


def test_last_words_arrive_although_the_server_is_gone_when_the_client_speaks() -> None:
    """The server says goodbye and ends. What the client sent meanwhile is refused; the goodbye is on its way."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        to = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        link = LabLink(to=to, shape=LinkShape(), back=LinkShape(delay_ms=300))
        with LabThread(link) as lab, connect(lab.endpoint()) as client:
            accepted, _ = server.accept()
            accepted.sendall(b"goodbye")
            accepted.close()
            for _ in range(3):
                client.sendall(b"more")
                time.sleep(0.02)
            assert read(client, 7) == b"goodbye"


def test_each_of_several_ports_leads_to_another_of_the_server() -> None:
    """127.0.0.2 is this machine, too: the lab has the server's own port numbers there, as a hub's targets need."""
    servers = consecutive_servers(3)
    ports = [each.getsockname()[1] for each in servers]
    link = LabLink(listen=f"127.0.0.2:{ports[0]}-{ports[2]}", to=f"tcp://127.0.0.1:{ports[0]}")
    with LabThread(link):
        for port, server in zip(ports, servers, strict=True):
            with connect(f"tcp://127.0.0.2:{port}") as client, server:
                client.sendall(b"x")
                accepted, _ = server.accept()
                with accepted:
                    assert accepted.recv(1) == b"x"


def consecutive_servers(num_servers: int) -> list[socket.socket]:
    """Servers on ports that follow one another."""
    while True:
        servers = [socket.create_server(("127.0.0.1", 0))]
        first = servers[0].getsockname()[1]
        try:
            servers += [socket.create_server(("127.0.0.1", first + each)) for each in range(1, num_servers)]
        except (OSError, OverflowError):
            for each in servers:
                each.close()
        else:
            return servers


def test_links_are_named_apart_and_counted_apart(echo: EchoServer) -> None:
    links = [LabLink(name=each, to=echo.endpoint) for each in ("near", "far")]
    with LabThread(*links) as lab, connect(lab.endpoint("far")) as client:
        round_trip_ms(client)
        assert [(each.name, each.num_open, each.forth.num_bytes) for each in lab.traffic()] == [
            ("near", 0, 0),
            ("far", 1, 1),
        ]


async def test_a_lab_runs_in_a_loop_that_is_there(echo: EchoServer) -> None:
    import asyncio

    async with Lab(LabLink(to=echo.endpoint, shape=LinkShape(delay_ms=1))) as lab:
        host, _, port = lab.link().endpoint.removeprefix("tcp://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        lab.link().reset()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


@pytest.mark.parametrize(
    ("links", "sentence"),
    [
        ([], "a lab needs at least one link"),
        ([LabLink(to="tcp://a:1"), LabLink(to="tcp://b:1")], "two links are called '0'"),
        ([LabLink(to="nowhere")], "the server of link '0' is at 'nowhere', which is not of the form tcp://host:port"),
        ([LabLink(to="tcp://a:65535", listen="7700-7701")], "its server's would end beyond 65535"),
        ([LabLink(to="tcp://127.0.0.1:7700", listen="7700")], "link '7700' leads to itself"),
        ([LabLink(to="tcp://[::1]:7702", listen="[::1]:7700-7702")], "leads to itself: it listens where its server"),
        ([LabLink(to="tcp://a:1", listen="0.0.0.0:0")], "the lab would listen on 0.0.0.0 and pass on whatever comes"),
    ],
)
def test_a_lab_that_cannot_be_is_refused_in_a_sentence(links: list[LabLink], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence), LabThread(*links):
        pass


def test_a_taken_port_is_named(echo: EchoServer) -> None:
    port = echo.endpoint.rpartition(":")[2]
    sentence = f"the lab cannot listen on 127.0.0.1:{port}: address already in use"
    with pytest.raises(ConfigError, match=sentence), LabThread(LabLink(to="tcp://127.0.0.1:9", listen=port)):
        pass
