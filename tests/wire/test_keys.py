"""Who may speak to whom: right key, wrong key, no key, and nothing beyond loopback without one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import json
import os
import shutil
import stat
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import psutil
import pytest
import zmq
from structlog.testing import capture_logs
from zmq.utils.monitor import recv_monitor_message

from starspec.audit import MAX_LINES_PER_S, AuditLog
from starspec.config import GatewayConfig, HubConfig, TargetConfig
from starspec.errors import ConfigError, PeerLost, PeerProtocolError
from starspec.gateway.hub_status import HubStatusClient
from starspec.ids import Epoch, PeerId, Tag, TargetId
from starspec.log_limit import INTERVAL_S, LINES
from starspec.sampling.spec import SamplingSpec
from starspec.stats import HubStats
from starspec.wire.callers import RELOAD_S, Caller, Callers, Doorkeeper
from starspec.wire.codec import encode
from starspec.wire.keys import Keys, NamedKey, generate_keys, is_loopback, load_keys, read_key
from starspec.wire.messages import PROTOCOL_VERSION, Ask, GatewayToTarget, Hello, HubStatus, Open, Ping, Pong, Rejected
from starspec.wire.transports.base import Joined, Left
from starspec.wire.transports.serving_client import ServingClient
from starspec.wire.transports.serving_server import ServingServer
from starspec.wire.transports.zmq_hub import ZmqHub
from starspec.wire.transports.zmq_target import ZmqTarget

HELLO = Hello(PROTOCOL_VERSION, TargetId("t"), 100, "f")
QUIET_S = 0.6  # long enough for a handshake on loopback to end either way


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generate_keys(tmp_path / "keys")
    return tmp_path / "keys"


def other_keys(folder: Path, role: str) -> Keys:
    """Keys of another star, of which only the server's public key is the right one."""
    other = folder.parent / "other"
    generate_keys(other)
    for public in ("hub.public", "target.public"):
        shutil.copy(folder / public, other / public)
    keys = load_keys(other, role)
    assert keys is not None
    return keys


def test_keys_are_made_once_and_only_their_owner_can_read_the_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "keys"
    paths = generate_keys(folder)
    assert sorted(path.name for path in paths) == sorted(
        f"{role}.{kind}" for role in ("hub", "target", "gateway", "stage") for kind in ("secret", "public")
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {".secret": 0o600, ".public": 0o644}
    before = {path: path.read_bytes() for path in paths}
    with pytest.raises(ConfigError, match=r"already holds hub\.secret"):
        generate_keys(folder)
    assert {path: path.read_bytes() for path in paths} == before
    assert len(set(before.values())) == 8


def test_loaded_keys_are_a_pair_and_know_who_may_call(folder: Path) -> None:
    hub = load_keys(folder, "hub")
    assert hub is not None
    assert hub.public == (folder / "hub.public").read_bytes().strip()
    known = {(folder / f"{role}.public").read_bytes().strip() for role in ("target", "gateway")}
    shutil.copy(folder / "hub.public", folder / "target-2.public")
    callers = Callers(hub)
    assert {callers.owner_of(key).role for key in known} == {"target", "gateway"}
    assert callers.owner_of(hub.public) == Caller("target-2", "target")
    assert callers.owner_of(b"x" * 40) is None
    gateway = load_keys(folder, "gateway")
    assert gateway is not None
    assert all(Callers(gateway).owner_of(key) is None for key in known)
    assert load_keys(None, "hub") is None


def test_no_secret_shows_when_keys_are_printed(folder: Path) -> None:
    keys = load_keys(folder, "hub")
    assert keys is not None
    assert keys.secret.decode() not in repr(keys)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda path: path.unlink(),
            "cannot read the key .*hub.secret: No such file or directory; `starspec keygen FOLDER` makes the keys",
        ),
        (lambda path: path.write_text("short"), "hub.secret does not contain a key: it must be the 40 characters"),
        (lambda path: path.write_bytes(b'"' * 40), "hub.secret does not contain a key"),
        (lambda path: path.chmod(0o644), "other users can read .*hub.secret: run `chmod 600"),
    ],
    ids=["missing", "short", "no z85", "open to others"],
)
def test_a_bad_key_file_is_a_sentence_that_names_it(folder: Path, spoil, sentence: str) -> None:
    spoil(folder / "hub.secret")
    with pytest.raises(ConfigError, match=sentence):
        load_keys(folder, "hub")


def test_a_pipe_in_the_place_of_a_key_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alice.public")  # reading it would wait for a writer
    with pytest.raises(ConfigError, match="it is not a file"):
        read_key(tmp_path / "alice.public")


def test_of_a_long_file_in_the_place_of_a_key_little_is_read(tmp_path: Path) -> None:
    path = tmp_path / "alice.public"
    path.touch()
    os.truncate(path, 2**26)  # sparse
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="does not contain a key"):
            read_key(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write keys to"):
        generate_keys(tmp_path / "file" / "keys")


def test_a_disk_that_fills_up_leaves_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, opened = os.fdopen, 0

    def third_on_a_full_disk(descriptor: int, mode: str) -> IO[bytes]:
        nonlocal opened
        opened += 1
        if opened < 3:
            return usual(descriptor, mode)
        os.close(descriptor)
        return Path("/dev/full").open(mode)

    monkeypatch.setattr(os, "fdopen", third_on_a_full_disk)
    with pytest.raises(ConfigError, match=rf"^cannot write keys to {tmp_path}: No space left on device$"):
        generate_keys(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    generate_keys(tmp_path)


def test_a_file_in_the_way_of_a_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "hub.public").symlink_to("nowhere/hub.public")
    with pytest.raises(ConfigError, match=r"hub\.public: "):
        generate_keys(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_these_hosts_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_these_hosts_are_not(host: str) -> None:
    assert not is_loopback(host)


def refuse(*_: object) -> None:
    return None


OPEN_ENDS = {
    "hub": lambda: ZmqHub("0.0.0.0", 0, refuse, refuse),
    "target": lambda: ServingServer("0.0.0.0", 0),
    "target's hub": lambda: ZmqTarget("tcp://10.0.0.1:7700", HELLO),
    "gateway's target": lambda: ServingClient("tcp://10.0.0.1:7800"),
    "gateway's hub": lambda: HubStatusClient("tcp://10.0.0.1:7700"),
}


@pytest.mark.parametrize("make", OPEN_ENDS.values(), ids=OPEN_ENDS)
def test_beyond_loopback_keys_are_required_in_a_sentence_with_both_ways_out(make) -> None:
    with pytest.raises(ConfigError, match=r"without keys: make keys .* and pass --keys FOLDER, or pass --insecure"):
        make()


def test_insecure_allows_what_its_name_says() -> None:
    server = ServingServer("0.0.0.0", 0, is_insecure=True)
    server.close()


def test_nothing_listens_beyond_loopback_by_default(star) -> None:
    assert {HubConfig().host, TargetConfig().host, GatewayConfig().host} == {"127.0.0.1"}
    assert not any(
        parameter.default is not inspect.Parameter.empty
        for end in (ZmqHub, ServingServer)
        for name, parameter in inspect.signature(end).parameters.items()
        if name == "host"
    )
    hub = star.hub()
    star.connected(hub.endpoint)
    server = ServingServer(TargetConfig().host, 0)
    listening = [each for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN]
    server.close()
    assert len(listening) >= 3
    assert {each.laddr.ip for each in listening} == {"127.0.0.1"}


def test_the_right_keys_connect_on_the_public_and_on_the_own_port(star, folder: Path) -> None:
    hub = star.hub(keys=load_keys(folder, "hub"))
    target = star.connected(hub.endpoint, keys=load_keys(folder, "target"))
    target.send([Ping(1)])
    assert target.receive(5.0) == [Pong(1)]


def test_a_key_that_the_hub_does_not_know_is_refused_and_the_target_says_so(star, folder: Path) -> None:
    hub = star.hub(keys=load_keys(folder, "hub"))
    target = star.target(hub.endpoint, keys=other_keys(folder, "target"))
    with capture_logs() as logs:
        star.until(lambda: "does not know this target's key" in target.problem, target)
        for _ in range(3):
            target.receive(0.1)
    assert [entry["problem"] for entry in logs if "problem" in entry] == [target.problem]  # said once
    assert not target.is_connected
    assert hub.heard == []


def test_a_target_that_takes_another_for_the_hub_says_so(star, folder: Path) -> None:
    keys = load_keys(folder, "target")
    assert keys is not None
    shutil.copy(folder / "gateway.public", folder / "hub.public")
    hub_keys = Keys(folder, "hub", *reversed(zmq.curve_keypair()))
    hub = star.hub(keys=hub_keys)
    target = star.target(hub.endpoint, keys=keys)
    star.until(lambda: "is hub.public here another hub's key?" in target.problem, target)
    assert not target.is_connected


def test_a_target_finds_its_hub_once_the_hubs_own_public_key_is_there(star, folder: Path) -> None:
    """It was another one for a while, as when the hub gets a new pair."""
    right = (folder / "hub.public").read_bytes()
    shutil.copy(folder / "gateway.public", folder / "hub.public")
    target = star.target(star.hub(keys=load_keys(folder, "hub")).endpoint, keys=load_keys(folder, "target"))
    star.until(lambda: "is hub.public here another hub's key?" in target.problem, target)
    (folder / "hub.public").write_bytes(right)
    star.until(lambda: target.is_connected, target)


async def test_a_gateway_finds_targets_and_hub_once_their_own_public_keys_are_there(folder: Path) -> None:
    right = {name: (folder / name).read_bytes() for name in ("hub.public", "target.public")}
    for name in right:
        shutil.copy(folder / "gateway.public", folder / name)
    status = HubStatus("d", HubStats())
    hub = ZmqHub("127.0.0.1", 0, refuse, lambda: status, keys=load_keys(folder, "hub"))
    server = ServingServer("127.0.0.1", 0, load_keys(folder, "target"))
    ask = HubStatusClient(f"tcp://127.0.0.1:{hub.port}", load_keys(folder, "gateway"), timeout_s=QUIET_S)
    client = ServingClient(f"tcp://127.0.0.1:{server.port}", load_keys(folder, "gateway"))
    listening = asyncio.create_task(client.receive())
    try:
        with pytest.raises(PeerLost):
            await ask()
        assert not client.is_connected
        for name, key in right.items():
            (folder / name).write_bytes(key)
        assert (await ask()).draft_name == "d"
        async with asyncio.timeout(10.0):
            while not client.is_connected:  # noqa: ASYNC110 (the client has no event for it)
                await asyncio.sleep(0.01)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        for each in (client, ask, server, hub):
            each.close()


def test_a_target_without_keys_is_refused_and_says_so(star, folder: Path) -> None:
    hub = star.hub(keys=load_keys(folder, "hub"))
    target = star.target(hub.endpoint)
    star.until(lambda: "keys on one side only" in target.problem, target)
    assert hub.heard == []


def test_a_target_with_keys_does_not_speak_to_a_hub_without(star, folder: Path) -> None:
    hub = star.hub()
    target = star.target(hub.endpoint, keys=load_keys(folder, "target"))
    star.until(lambda: "keys on one side only" in target.problem, target)
    assert hub.heard == []


def test_a_refused_stranger_disturbs_nobody(star, folder: Path) -> None:
    hub = star.hub(keys=load_keys(folder, "hub"))
    honest = star.connected(hub.endpoint, keys=load_keys(folder, "target"))
    stranger = star.target(hub.endpoint, "stranger", keys=other_keys(folder, "target"))
    star.until(lambda: "does not know" in stranger.problem, stranger, honest)
    honest.send([Ping(1)])
    assert honest.receive(5.0) == [Pong(1)]


def test_a_missing_public_key_of_the_server_is_a_sentence_at_the_start(folder: Path) -> None:
    for name in ("hub.public", "target.public"):
        (folder / name).unlink()
    with pytest.raises(ConfigError, match=r"cannot read the key .*hub\.public"):
        ZmqTarget("tcp://127.0.0.1:9", HELLO, load_keys(folder, "target"))
    with pytest.raises(ConfigError, match=r"cannot read the key .*target\.public"):
        ServingClient("tcp://127.0.0.1:9", load_keys(folder, "gateway"))
    with pytest.raises(ConfigError, match=r"cannot read the key .*hub\.public"):
        HubStatusClient("tcp://127.0.0.1:9", load_keys(folder, "gateway"))


async def test_the_serving_link_takes_the_right_keys_only_and_tells_the_audit_log(folder: Path, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    server = ServingServer("127.0.0.1", 0, load_keys(folder, "target"), audit=AuditLog(str(audit), "t0"))
    endpoint = f"tcp://127.0.0.1:{server.port}"
    clients = {
        "right": ServingClient(endpoint, load_keys(folder, "gateway")),
        "wrong": ServingClient(endpoint, other_keys(folder, "gateway")),
        "none": ServingClient(endpoint),
    }
    listening = [asyncio.create_task(client.receive()) for client in clients.values()]
    try:
        await asyncio.sleep(QUIET_S)
        assert {name: client.is_connected for name, client in clients.items()} == {
            "right": True,
            "wrong": False,
            "none": False,
        }
        for client in clients.values():
            client.send(Ask(PROTOCOL_VERSION))
        assert [type(message) for _, message in await asyncio.to_thread(server.receive, 5.0)] == [Ask]
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        assert [line["key"] for line in lines if line["event"] == "gateway_connected"] == ["gateway"]
        wrong = load_keys(folder.parent / "other", "gateway")
        assert {line["key"] for line in lines if line["event"] == "key_refused"} == {wrong.public.decode()}
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
        for client in clients.values():
            client.close()
        server.close()


async def test_a_hub_with_keys_answers_the_gateway_that_has_them(folder: Path) -> None:
    status = HubStatus("d", HubStats())
    hub = ZmqHub("127.0.0.1", 0, refuse, lambda: status, keys=load_keys(folder, "hub"))
    endpoint = f"tcp://127.0.0.1:{hub.port}"
    right = HubStatusClient(endpoint, load_keys(folder, "gateway"))
    wrong = HubStatusClient(endpoint, other_keys(folder, "gateway"), timeout_s=QUIET_S)
    try:
        assert await right() == status
        with pytest.raises(PeerLost, match="did not answer within"):
            await wrong()
        assert await right() == status
    finally:
        right.close()
        wrong.close()
        hub.close()


def test_the_umask_does_not_open_a_secret(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        generate_keys(tmp_path / "keys")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys" / "hub.secret").stat().st_mode) == 0o600


def new_key(folder: Path, role: str, name: str) -> Keys:
    """Keys of one more client, in a folder `name` beside this one, which does not hold its public key yet."""
    other = folder.parent / name
    generate_keys(other)
    for public in ("hub.public", "target.public"):
        if public != f"{role}.public":
            shutil.copy(folder / public, other / public)
    keys = load_keys(other, role)
    assert keys is not None
    return keys


def allow(folder: Path, keys: Keys, name: str) -> Path:
    """Put a client's public key into the server's folder."""
    path = folder / f"{name}.public"
    path.write_bytes(keys.public)
    return path


def named(folder: Path, name: str) -> NamedKey:
    """The key that the folder has under this name now."""
    return NamedKey(read_key(folder / f"{name}.public"), name)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_folder_is_read_again_when_it_changes_and_a_broken_file_harms_nobody(folder: Path) -> None:
    clock = Clock()
    callers = Callers(load_keys(folder, "hub"), clock)
    later = new_key(folder, "target", "later")
    path = allow(folder, later, "target-later")
    assert callers.owner_of(later.public) is None  # the folder is looked at once in RELOAD_S
    clock.now += RELOAD_S
    assert callers.owner_of(later.public) == Caller("target-later", "target")
    path.write_text("half a k")
    clock.now += RELOAD_S
    with capture_logs() as logs:
        assert not callers.is_allowed(NamedKey(later.public, "target-later"))
    assert "target-later.public does not contain a key" in logs[0]["why"]
    assert callers.is_allowed(named(folder, "target"))
    path.unlink()
    clock.now += RELOAD_S
    assert not callers.is_allowed(NamedKey(later.public, "target-later"))


@pytest.mark.parametrize(
    ("key_name", "target_id", "why"),
    [
        ("target-a", "a", None),
        ("target-a", "target-a", None),
        ("target-a", "b", "is for a target named 'a', not 'b'"),
        ("target", "a", "belongs to the key target-a.public"),
        ("target", "target-a", "belongs to the key target-a.public"),
        ("target", "A", "the name 'A' looks like 'a', which belongs to the key target-a.public"),
        ("target", "a ", "belongs to the key target-a.public"),
        ("target", "a\u200b", r"the name 'a\u200b' looks like 'a', which belongs to the key target-a.public"),
        ("target", "\uff41", "belongs to the key target-a.public"),
        ("target", "\u00a0a\ufe0f", "belongs to the key target-a.public"),
        ("target", "TARGET -a", "belongs to the key target-a.public"),
        ("target-a", "A", "is for a target named 'a', not 'A'"),
        ("target", "b", None),
        ("target", "aa", None),
        ("target", "machine:7800", None),
    ],
)
def test_a_name_belongs_to_its_key(folder: Path, key_name: str, target_id: str, why: str | None) -> None:
    allow(folder, new_key(folder, "target", "a"), "target-a")
    callers = Callers(load_keys(folder, "hub"))
    found = callers.why_not_named(Caller(key_name, "target"), target_id)
    assert found is None if why is None else why in found


def test_a_target_that_takes_the_name_of_another_key_is_refused_in_a_sentence(star, folder: Path) -> None:
    allow(folder, new_key(folder, "target", "a"), "target-a")
    hub = star.hub(keys=load_keys(folder, "hub"))
    thief = star.target(hub.endpoint, "a", keys=load_keys(folder, "target"))
    star.until(lambda: "belongs to the key target-a.public" in thief.problem, thief)
    owner = star.connected(hub.endpoint, "a", keys=load_keys(folder.parent / "a", "target"))
    owner.send([Ping(1)])
    assert owner.receive(5.0) == [Pong(1)]


async def test_a_key_has_its_own_role_only(star, folder: Path) -> None:
    hub = star.hub(keys=load_keys(folder, "hub"))
    gateway = star.target(hub.endpoint, keys=load_keys(folder, "gateway"))
    star.until(lambda: "gateway.public is a gateway's: only a target's key may get" in gateway.problem, gateway)
    asks = HubStatusClient(hub.endpoint, load_keys(folder, "target"))
    try:
        with pytest.raises(PeerProtocolError, match=r"target\.public is a target's: only a gateway's key may ask"):
            await asks()
    finally:
        asks.close()


def test_a_data_port_takes_only_the_key_that_it_was_opened_for(star, folder: Path) -> None:
    """Another target that learned the link's id, which is secret, is refused before it can send a frame."""
    other = new_key(folder, "target", "other")
    allow(folder, other, "target-other")
    hub = star.hub(keys=load_keys(folder, "hub"))
    star.connected(hub.endpoint, keys=load_keys(folder, "target"))
    listening = [each for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN]
    [port] = {each.laddr.port for each in listening} - {hub.transport.port}
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        other.secure_client(socket, load_keys(folder, "hub").public)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        socket.connect(f"tcp://127.0.0.1:{port}")
        assert monitor.poll(5000)
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        socket.disable_monitor()
        monitor.close()


def test_a_key_is_replaced_while_the_hub_serves_and_the_old_one_ends(star, folder: Path) -> None:
    hub = star.hub(keys=load_keys(folder, "hub"))
    target = star.connected(hub.endpoint, keys=load_keys(folder, "target"))
    new = new_key(folder, "target", "new")
    allow(folder, new, "target")
    star.until(lambda: Left("its key was removed") in hub.events_of("t"), target)
    star.until(lambda: "does not know" in target.problem, target)
    star.connected(hub.endpoint, keys=new)


@contextlib.contextmanager
def gateway_of(server: ServingServer, keys: Keys) -> Iterator[PeerId]:
    """A gateway with these keys, which has asked. Yields: who it is to the target."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        keys.secure_client(dealer, keys.public_key_of("target"))
        dealer.connect(f"tcp://127.0.0.1:{server.port}")
        dealer.send(encode(Ask(PROTOCOL_VERSION)))
        [(peer, _)] = server.receive(20.0)
        yield peer


def test_a_gateway_whose_key_is_replaced_is_neither_heard_nor_answered(folder: Path) -> None:
    server, old = ServingServer("127.0.0.1", 0, load_keys(folder, "target")), load_keys(folder, "gateway")
    new = new_key(folder, "gateway", "new")
    with contextlib.closing(server), contextlib.ExitStack() as stack:
        old_peer = stack.enter_context(gateway_of(server, old))
        allow(folder, new, "gateway")
        time.sleep(RELOAD_S)
        assert server.send(stack.enter_context(gateway_of(server, new)), [])
        assert not server.send(old_peer, [Rejected("r", "no")])


def test_a_key_that_gets_another_name_or_role_has_to_come_again(folder: Path) -> None:
    clock = Clock()
    callers, target = Callers(load_keys(folder, "hub"), clock), named(folder, "target")
    (folder / "target.public").rename(folder / "gateway-a.public")
    clock.now += RELOAD_S
    assert not callers.is_allowed(target)
    assert callers.is_allowed(named(folder, "gateway-a"))


def test_a_key_in_two_files_has_one_name_and_the_log_says_which(folder: Path) -> None:
    clock = Clock()
    shutil.copy(folder / "target.public", folder / "target-a.public")
    with capture_logs() as logs:
        callers = Callers(load_keys(folder, "hub"), clock)
    assert (logs[0]["used"], logs[0]["left_out"]) == ("target", "target-a")
    assert callers.is_allowed(named(folder, "target"))
    shutil.copy(folder / "gateway.public", folder / "gateway-b.public")
    clock.now += RELOAD_S
    with capture_logs() as logs:
        callers.owner_of(b"")
    assert [each["left_out"] for each in logs if "left_out" in each] == ["target-a", "gateway-b"]


def test_while_some_file_cannot_be_read_the_log_grows_slowly(folder: Path) -> None:
    clock = Clock()
    callers = Callers(load_keys(folder, "hub"), clock)
    (folder / "target-loop.public").symlink_to("target-loop.public")
    for number in range(20):
        (folder / f"target-short-{number}.public").write_text("short")
        shutil.copy(folder / "target.public", folder / f"target-twin-{number}.public")
    with capture_logs() as logs:
        for _ in range(20):
            clock.now += RELOAD_S
            callers.owner_of(b"")
    kinds = Counter(each["event"] for each in logs)
    assert kinds.keys() >= {"a key is left out", "two files hold the same key: one is left out"}
    assert all(number <= 2 * LINES for number in kinds.values()), kinds


def deny(*_: object, **__: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


READS = {"list": (os, "listdir"), "look": (Path, "stat"), "read": (Path, "open")}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_keys_that_cannot_be_read_stay_as_last_known_until_they_can(folder: Path, monkeypatch, read) -> None:
    clock = Clock()
    target, later = load_keys(folder, "target"), new_key(folder, "target", "later")
    callers = Callers(load_keys(folder, "hub"), clock)
    allow(folder, later, "target-later")
    with monkeypatch.context() as denied:
        denied.setattr(*read, deny)
        with capture_logs() as logs:
            for _ in range(3):
                clock.now += RELOAD_S
                assert callers.is_allowed(NamedKey(target.public, "target"))
                assert callers.owner_of(target.public) == Caller("target", "target")
                assert callers.owner_of(later.public) is None
        assert [each["event"] for each in logs] == ["keys cannot be read: those last known stay"]
        assert "Permission denied" in logs[0]["why"]
    clock.now += RELOAD_S
    assert callers.owner_of(later.public) == Caller("target-later", "target")
    (folder / "target.public").unlink()
    clock.now += RELOAD_S
    assert callers.owner_of(target.public) is None


def test_a_key_is_removed_also_while_another_one_cannot_be_read(folder: Path, monkeypatch) -> None:
    clock = Clock()
    callers = Callers(load_keys(folder, "hub"), clock)
    target, gateway = named(folder, "target"), named(folder, "gateway")
    monkeypatch.setattr(Path, "open", deny)
    (folder / "target.public").unlink()
    clock.now += RELOAD_S
    assert not callers.is_allowed(target)
    assert callers.is_allowed(gateway)
    shutil.rmtree(folder)
    clock.now += RELOAD_S
    assert not callers.is_allowed(gateway)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_at_the_start_keys_that_cannot_be_read_are_a_sentence(folder: Path, monkeypatch, read) -> None:
    keys = load_keys(folder, "hub")
    monkeypatch.setattr(*read, deny)
    with pytest.raises(ConfigError, match=r"cannot read the .*: Permission denied"):
        Callers(keys)


def is_let_in(context: zmq.Context, server: zmq.Socket, keys: Keys, hub: Keys) -> bool:
    """Whether a message of a client with these keys comes through."""
    with context.socket(zmq.DEALER) as client:
        client.linger = 0
        keys.secure_client(client, hub.public)
        client.connect(server.last_endpoint)
        client.send(b"")
        if server.poll(int(QUIET_S * 1000)):
            server.recv_multipart()
            return True
        return False


def test_a_doorkeeper_that_cannot_check_lets_nobody_in_and_lives(folder: Path, monkeypatch) -> None:
    hub, target = load_keys(folder, "hub"), load_keys(folder, "target")
    callers, context = Callers(hub), zmq.Context()
    with zmq.Context() as others, context.socket(zmq.ROUTER) as server:
        server.linger = 0
        hub.secure_server(server)
        server.bind("tcp://127.0.0.1:0")
        assert not is_let_in(others, server, target, hub)  # there is no doorkeeper yet
        Doorkeeper(context, callers, AuditLog.off())
        with monkeypatch.context() as broken, capture_logs() as logs:
            broken.setattr(callers, "owner_of", deny)
            assert not is_let_in(others, server, target, hub)
        assert "could not be checked" in logs[0]["event"]
        assert is_let_in(others, server, target, hub)
    context.term()


def test_places_are_shared_by_named_keys_and_by_the_address_of_a_shared_one(star, folder: Path) -> None:
    """All targets have one address, so only their keys tell whose the places are."""
    shared = load_keys(folder, "target")
    keys = {name: new_key(folder, "target", name) for name in ("greedy", "honest")}
    for name, each in keys.items():
        allow(folder, each, f"target-{name}")
    hub = star.hub(max_targets=4, keys=load_keys(folder, "hub"))
    asking = Open(Tag(1), Epoch(1), [1, 2], 2, SamplingSpec(), 4)
    for number in range(4):  # they look busy
        star.connected(hub.endpoint, "greedy", keys=keys["greedy"]).send([asking])
        star.until(lambda number=number: hub.messages_of("greedy").count(asking) == number + 1)
    star.connected(hub.endpoint, "honest", keys=keys["honest"]).send([asking])
    star.connected(hub.endpoint, "any", keys=shared).send([asking])
    star.until(lambda: [type(each) for each in hub.events_of("greedy")].count(Left) == 2)
    for name, owner in (("greedy", keys["greedy"]), ("honest", keys["honest"]), ("another", shared)):
        late = star.target(hub.endpoint, name, keys=owner)
        star.until(lambda late=late: "the hub refused: no place" in late.problem, late)
    assert [type(each) for name in ("honest", "any") for each in hub.events_of(name)] == [Joined, Joined]


def test_a_key_is_added_and_removed_while_the_hub_serves(star, folder: Path) -> None:
    hub = star.hub(keys=load_keys(folder, "hub"))
    honest = star.connected(hub.endpoint, "honest", keys=load_keys(folder, "target"))
    late = new_key(folder, "target", "late")
    target = star.target(hub.endpoint, "late", keys=late)
    star.until(lambda: "does not know" in target.problem, target)
    path = allow(folder, late, "target-late")
    star.until(lambda: target.is_connected, target, honest)
    path.unlink()
    star.until(lambda: not target.is_connected, target, honest)
    star.until(lambda: Left("its key was removed") in hub.events_of("late"), target, honest)
    star.until(lambda: "does not know" in target.problem, target, honest)
    honest.send([Ping(1)])
    assert honest.receive(5.0) == [Pong(1)]


class ServingLink(NamedTuple):
    """A target, and a gateway that listens to it."""

    server: ServingServer
    client: ServingClient
    breaks: asyncio.Queue[PeerLost]  # of the connection, as the gateway hears of them

    async def connect(self) -> None:
        """Wait until the connection is made."""
        async with asyncio.timeout(20.0):
            while not self.client.is_connected:  # noqa: ASYNC110 (the client has no event for it)
                await asyncio.sleep(0.01)

    async def ask(self, wait_s: float) -> list[tuple[PeerId, GatewayToTarget]]:
        """The gateway asks. Returns: what the target hears within so many seconds."""
        self.client.send(Ask(PROTOCOL_VERSION))
        return await asyncio.to_thread(self.server.receive, wait_s)


@contextlib.asynccontextmanager
async def serving_link(folder: Path, keys: Keys | None) -> AsyncIterator[ServingLink]:
    """Args: keys: of the gateway."""
    server = ServingServer("127.0.0.1", 0, load_keys(folder, "target"))
    client = ServingClient(f"tcp://127.0.0.1:{server.port}", keys)
    link = ServingLink(server, client, asyncio.Queue())

    async def listen() -> None:
        while True:
            try:
                await client.receive()
            except PeerLost as error:
                link.breaks.put_nowait(error)

    listening = asyncio.create_task(listen())
    try:
        yield link
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        client.close()
        server.close()


async def test_a_gateway_whose_key_is_added_later_connects_by_itself(folder: Path) -> None:
    late = new_key(folder, "gateway", "late")
    async with serving_link(folder, late) as link:
        await asyncio.sleep(QUIET_S)
        assert not link.client.is_connected
        allow(folder, late, "gateway-late")
        await link.connect()


async def test_a_gateway_whose_key_is_removed_is_neither_heard_nor_answered(folder: Path) -> None:
    async with serving_link(folder, load_keys(folder, "gateway")) as link:
        await link.connect()
        [(peer, _)] = await link.ask(5.0)
        assert link.server.send(peer, [])
        (folder / "gateway.public").unlink()
        await asyncio.sleep(RELOAD_S)
        assert await link.ask(0.3) == []
        assert not link.server.send(peer, [Rejected("r", "no")])


async def test_a_gateway_whose_key_is_removed_is_disconnected_and_comes_back_with_it(folder: Path) -> None:
    path = folder / "gateway.public"
    key = path.read_bytes()
    async with serving_link(folder, load_keys(folder, "gateway")) as link:
        await link.connect()
        assert len(await link.ask(5.0)) == 1
        path.unlink()
        await asyncio.sleep(RELOAD_S)
        assert await link.ask(5.0) == []
        assert "broke" in str(await asyncio.wait_for(link.breaks.get(), 5.0))
        await asyncio.sleep(QUIET_S)
        assert not link.client.is_connected
        path.write_bytes(key)
        await link.connect()


def test_gateways_belong_to_their_named_key_and_to_the_address_where_a_key_is_shared(folder: Path) -> None:
    named = [new_key(folder, "gateway", name) for name in ("a", "b")]
    for name, each in zip("ab", named, strict=True):
        allow(folder, each, f"gateway-{name}")
    server = ServingServer("127.0.0.1", 0, load_keys(folder, "target"))
    with contextlib.closing(server), contextlib.ExitStack() as stack:
        keys = (*named, named[0], load_keys(folder, "gateway"))
        peers = [stack.enter_context(gateway_of(server, each)) for each in keys]
        owners = [server.owner_of(peer) for peer in peers]
    assert owners == ["key gateway-a", "key gateway-b", "key gateway-a", "127.0.0.1"]
    assert server.owner_of(PeerId(b"a stranger")) == ""


def test_the_audit_log_tells_who_connected_what_was_opened_and_what_was_refused(
    star, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    hub = star.hub(keys=load_keys(folder, "hub"), audit=AuditLog(path, "hub"), max_targets=1)
    target = star.connected(hub.endpoint, "t", keys=load_keys(folder, "target"))
    target.send([Open(Tag(7), Epoch(1), (5, 6, 7), 0, SamplingSpec(temperature=0.0), 4)])
    strange = other_keys(folder, "target")
    stranger = star.target(hub.endpoint, "stranger", keys=strange)
    full = star.target(hub.endpoint, "second", keys=load_keys(folder, "target"))
    star.until(lambda: "does not know" in stranger.problem and "no place" in full.problem, stranger, full, target)
    target.close()
    star.until(lambda: '"target_left"' in path.read_text(), stranger)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(line["process"] == "hub" and line["time"].endswith("+00:00") for line in lines)
    seen = {line["event"]: line for line in lines}
    assert seen["target_connected"]["target"] == "t"
    assert seen["target_connected"]["key"] == "target"
    assert (seen["tag_opened"]["tag"], seen["tag_opened"]["num_tokens"]) == (7, 3)
    assert seen["key_refused"]["key"] == strange.public.decode()
    assert seen["refused"]["code"] == "full"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_refused_keys_are_logged_once_in_a_while_with_their_number(folder: Path) -> None:
    clock = Clock()
    context = zmq.Context()
    doorkeeper = Doorkeeper(context, Callers(load_keys(folder, "hub")), AuditLog.off(), clock)
    request = [b"1.0", b"1", b"starspec:", b"10.0.0.9", b"", b"CURVE", b"k" * 32]
    with capture_logs() as logs:
        for _ in range(1000):
            assert doorkeeper._answer(request)[2] == b"400"
        clock.now += INTERVAL_S
        doorkeeper._answer(request)
    context.term()
    assert [entry.get("num_left_out") for entry in logs] == [None, 999]
    assert logs[0]["address"] == "10.0.0.9"


def test_an_audit_log_that_floods_leaves_lines_out_and_says_how_many(tmp_path: Path) -> None:
    clock = Clock()
    audit = AuditLog(tmp_path / "audit", "p", clock)
    for _ in range(MAX_LINES_PER_S + 50):
        audit.note("refused", why="x" * 1000)
    clock.now += 1.0
    audit.note("refused")
    lines = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert len(lines) == MAX_LINES_PER_S + 1
    assert len(lines[0]["why"]) == 200
    assert lines[-1]["num_left_out"] == 50


def test_a_line_of_the_audit_log_that_a_full_disk_cuts_off_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = AuditLog(tmp_path / "audit", "p")
    with capture_logs() as logs, monkeypatch.context() as full:
        usual = os.write
        full.setattr(os, "write", lambda file, line: usual(file, line[:20]))
        audit.note("cut off")
    for event in ("first", "second"):
        audit.note(event)
    [half, *lines] = (tmp_path / "audit").read_text().splitlines()
    assert len(half) == 20
    assert [json.loads(line)["event"] for line in lines] == ["first", "second"]
    assert [entry["why"] for entry in logs] == ["No space left on device"]


def test_an_audit_log_on_a_full_disk_costs_lines_and_not_the_process(tmp_path: Path) -> None:
    audit = AuditLog("/dev/full", "p")
    with capture_logs() as logs:
        audit.note("refused")
        audit.note("refused")
    assert [entry["why"] for entry in logs] == ["No space left on device"]
    with pytest.raises(ConfigError, match=r"cannot write the audit log .*missing/audit: No such file"):
        AuditLog(tmp_path / "missing" / "audit", "p")
