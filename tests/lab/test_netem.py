"""Links that the kernel's netem makes: their commands, what is refused, and, where this machine permits, real ones."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import threading
import time
from random import Random

import pytest
from lab_toys import EchoServer, connect, read

from starspec.config.lab import LabLink, LinkShape
from starspec.errors import ConfigError
from starspec.lab import LabThread, Traffic, namespace, netem_link
from starspec.lab.file import PRESETS
from starspec.lab.namespace import Namespace
from starspec.lab.netem import FAR, NEAR, end_commands, pair_command, shape_command

PROBE = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
SHAPES = {
    "nothing": (LinkShape(), "limit 23173 delay 0ms 0ms loss 0% rate 0bit"),
    "everything": (
        LinkShape(delay_ms=40, jitter_ms=2, mbit_s=50, loss=0.001),
        "limit 1000 delay 40ms 2ms loss 0.1% rate 50000000bit",
    ),
    "a small part of a megabit": (LinkShape(mbit_s=0.001), "limit 1000 delay 0ms 0ms loss 0% rate 1000bit"),
    "less than a millisecond": (PRESETS["metro"].forth, "limit 1000 delay 0.7ms 0.1ms loss 0% rate 1000000000bit"),
    "much on its way": (PRESETS["continents"].back, "limit 1589 delay 45ms 1ms loss 0.01% rate 100000000bit"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_one_netem_queue_that_holds_what_is_on_its_way(name: str) -> None:
    shape, words = SHAPES[name]
    assert shape_command(NEAR, shape) == ("tc", *f"qdisc replace dev near root netem {words}".split())


def test_an_end_knows_the_other_and_sends_one_segment_at_a_time() -> None:
    assert [" ".join(each) for each in (pair_command(77), *end_commands(FAR, NEAR, LinkShape(delay_ms=3)))] == [
        "ip link add near address 02:00:00:00:00:01 type veth peer name far address 02:00:00:00:00:02 netns 77",
        "ip link set dev far up gso_max_segs 1",
        "ip address add 10.0.0.2/30 dev far",
        "ip neighbour add 10.0.0.1 lladdr 02:00:00:00:00:01 dev far nud permanent",
        "tc qdisc replace dev far root netem limit 23173 delay 3ms 0ms loss 0% rate 0bit",
    ]


TO = "tcp://127.0.0.1:1"
STALLS = LinkShape(stall_ms=5)
REFUSED = {
    "a seed": (LabLink(to=TO), 7, "--netem takes no seed: the kernel draws jitter and losses"),
    "a stall": (LabLink(to=TO, shape=STALLS), 0, "--netem takes no stall_ms: the kernel's TCP decides"),
    "a stall back": (LabLink(to=TO, back=STALLS), 0, "--netem takes no stall_ms"),
    "no server": (LabLink(to="udp://here"), 0, "is not of the form tcp://host:port"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernel_does_not_let_us_say_is_refused_whatever_this_machine_permits(name: str) -> None:
    link, seed, why = REFUSED[name]
    with pytest.raises(ConfigError, match=why), LabThread(link, seed=seed, by_netem=True):
        pass


async def test_without_the_right_to_make_namespaces_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(namespace, "_leave", refuse)
    with pytest.raises(ConfigError, match=r"^--netem needs the right to .*, as root has it: Operation not permitted$"):
        await Namespace.open()


FAILURES = {
    "no program": (("starspec-has-no-such",), r"needs the program `starspec-has-no-such`, of the package iproute2"),
    "no netem": (
        ("sh", "-c", "echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2"),
        "needs a kernel with netem, and this one has none: load the module sch_netem",
    ),
    "another error": (("sh", "-c", "echo 'Error: No device.' >&2; exit 1"), "exit 1` failed: No device"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_command_that_fails_is_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "_leave", lambda: 1)
    words, why = FAILURES[name]
    made = await Namespace.open()
    try:
        with pytest.raises(ConfigError, match=f"^--netem.*{why}$"):
            await made.run(words)
    finally:
        made.close()


async def test_the_loop_carries_bytes_while_commands_run(echo: EchoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends are in the network of this process, and commands are told and do nothing."""
    told, may_end = list[str](), threading.Event()
    loop, is_running = asyncio.get_running_loop(), asyncio.Event()

    def run(command: tuple[str, ...]) -> str:
        told.append(" ".join(command))
        loop.call_soon_threadsafe(is_running.set)
        assert may_end.wait(30.0), "what lets it end runs in the loop"
        return '[{"drops": 3}]'

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(namespace, "_leave", lambda: 77)
    monkeypatch.setattr(namespace, "_run", run)
    monkeypatch.setattr(netem_link, "FIRST_PORT", port)
    monkeypatch.setattr(netem_link, "FAR", FAR._replace(address="127.0.0.1"))
    async with asyncio.timeout(60.0):
        opening = asyncio.create_task(netem_link.NetemLink.open(LabLink(to=echo.endpoint), 0))
        await is_running.wait()
        may_end.set()
        link = await opening
        host, _, own_port = link.endpoint.removeprefix("tcp://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(own_port))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        for ask in (link.traffic, lambda: link.reshape(LinkShape(delay_ms=5), LinkShape(delay_ms=9))):
            may_end.clear()
            is_running.clear()
            asking = asyncio.create_task(ask())
            await is_running.wait()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            may_end.set()
            await asking
        forth, back = await link.traffic()
        writer.close()
        await link.close()
    assert (forth, back) == (Traffic(15, 3), Traffic(15, 3))
    assert told[0].endswith("netns 77")
    assert told[-4] == " ".join(shape_command(NEAR, LinkShape(delay_ms=5)))
    assert told[-3] == " ".join(shape_command(FAR, LinkShape(delay_ms=9)))


def permitted() -> bool:
    """Whether this user may make network namespaces here, and the kernel has netem."""
    if shutil.which("unshare") is None or shutil.which("tc") is None:
        return False
    return subprocess.run(PROBE, capture_output=True, timeout=10, check=False).returncode == 0


def round_trip_ms(connection: socket.socket) -> float:
    begun_s = time.perf_counter()
    connection.sendall(b"x")
    assert read(connection, 1) == b"x"
    return (time.perf_counter() - begun_s) * 1e3


@pytest.mark.system
def test_where_the_kernel_permits_it_delays_and_loses_packets_and_elsewhere_it_is_refused(echo: EchoServer) -> None:
    sent = Random(1).randbytes(1_000_000)
    link = LabLink(to=echo.endpoint, shape=LinkShape(delay_ms=20), back=LinkShape(delay_ms=5))
    if not permitted():
        with pytest.raises(ConfigError, match=r"^--netem needs [^\n]*$"), LabThread(link, by_netem=True):
            pass
        return
    with LabThread(link, by_netem=True) as lab, connect(lab.endpoint()) as client:
        first_ms = round_trip_ms(client)
        assert first_ms >= 49.0  # connecting takes a round trip of its own
        assert 24.9 <= min(round_trip_ms(client) for _ in range(5)) <= 35.0
        lab.partition()
        client.sendall(b"held")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(30.0)
        lab.reshape(LinkShape(delay_ms=2, mbit_s=200, loss=0.02))
        lab.heal()
        assert read(client, 4) == b"held"
        threading.Thread(target=client.sendall, args=(sent,)).start()
        assert read(client, len(sent)) == sent
        assert 3.9 <= min(round_trip_ms(client) for _ in range(5)) <= 14.0
        [traffic] = lab.traffic()
    assert traffic.forth.num_bytes == traffic.back.num_bytes > len(sent)
    assert min(traffic.forth.num_losses, traffic.back.num_losses) > 0
