"""The port of a stage takes what has the form of a message, from who may send it."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from starspec.audit import AuditLog
from starspec.config.lab import LabLink, LinkShape
from starspec.errors import ConfigError
from starspec.ids import StageId
from starspec.lab import LabThread
from starspec.wire.callers import RELOAD_S, Caller
from starspec.wire.keys import Keys, generate_keys, load_keys
from starspec.wire.messages import Identity, Refused
from starspec.wire.transports import stage_connection, target_sockets
from starspec.wire.transports.sockets import Context
from starspec.wire.transports.stage_connection import StageConnection
from starspec.wire.transports.stage_port import StageArrival, StagePort
from starspec.wire.transports.waiting import Waiting

pytestmark = pytest.mark.timeout(60)

LIMIT_S = 10.0


@contextmanager
def connected(keys: Keys | None = None, own: Keys | None = None) -> Iterator[tuple[StagePort, StageConnection]]:
    context = Context()
    with closing(StagePort("127.0.0.1", 0, keys, False, AuditLog.off())) as port:
        connection = StageConnection(context, f"tcp://127.0.0.1:{port.port}", own, False, 2.0, "the target")
        try:
            until(connection, lambda: connection.is_ready)
            yield port, connection
        finally:
            connection.close()
            context.term()


def receive(port: StagePort, num: int = 1) -> list[StageArrival]:
    """Waits for so many."""
    waiting, arrived = Waiting(), []
    waiting.add(lambda: port.sockets)
    limit_s = time.monotonic() + LIMIT_S
    while len(arrived) < num:
        assert time.monotonic() < limit_s
        waiting.wait(0.1)
        arrived += port.receive()
    return arrived


def until(connection: StageConnection, holds: Callable[[], bool]) -> None:
    waiting, limit_s = Waiting(), time.monotonic() + LIMIT_S
    waiting.add(lambda: connection.sockets)
    while not holds():
        assert time.monotonic() < limit_s
        waiting.wait(0.1)
        connection.check()


def test_one_frame_is_control_and_three_are_a_traversal_and_all_else_is_dropped() -> None:
    with connected() as (port, connection):
        for frames in ([b"control"], [b"a", b"b"], [b"traversal", b"judges", b"hidden"]):
            connection.send(frames)
        control, traversal = receive(port, 2)
        assert (bytes(control.frames[0]), control.is_traversal) == (b"control", False)
        assert ([bytes(each) for each in traversal.frames], traversal.is_traversal) == (
            [b"traversal", b"judges", b"hidden"],
            True,
        )
        assert port.num_rejected == 1
        assert control.caller is None
        connection.send([b"a"] * 9)  # it ends the connection, with what was sent behind it
        limit_s = time.monotonic() + LIMIT_S
        while port.num_rejected == 1:
            assert time.monotonic() < limit_s
            assert port.receive() == []
            time.sleep(0.01)
        assert port.num_rejected == 2


def test_large_frames_arrive_whole_although_they_are_not_copied() -> None:
    hidden = bytes(range(256)) * 4000
    with connected() as (port, connection):
        connection.send([b"t", b"j", memoryview(hidden)])
        [arrival] = receive(port)
        assert bytes(arrival.frames[2]) == hidden


def test_a_key_says_who_sends(tmp_path: Path) -> None:
    generate_keys(tmp_path)
    for role in ("target", "stage"):
        with connected(load_keys(tmp_path, "stage"), load_keys(tmp_path, role)) as (port, connection):
            connection.send([b"x"])
            [arrival] = receive(port)
            assert arrival.caller is not None
            assert arrival.caller.role == role


def test_a_target_whose_key_a_stage_does_not_know_any_more_says_so_and_comes_back_with_it(tmp_path: Path) -> None:
    generate_keys(tmp_path)
    path, why = tmp_path / "target.public", None
    key = path.read_bytes()
    with connected(load_keys(tmp_path, "stage"), load_keys(tmp_path, "target")) as (port, connection):
        connection.send([b"x"])
        receive(port)
        path.unlink()
        time.sleep(RELOAD_S)
        limit_s = time.monotonic() + LIMIT_S
        while why is None:
            assert time.monotonic() < limit_s
            connection.send([b"x"])
            assert port.receive() == []
            time.sleep(0.01)
            why = connection.check()
        assert connection.take_break()
        assert "does not know the key of the target" in why
        path.write_bytes(key)
        until(connection, lambda: connection.is_ready)


def test_a_key_that_gets_another_role_has_to_come_again_to_a_stage(tmp_path: Path) -> None:
    """Else a target that was made a stage could hold the stage that it has attached."""
    generate_keys(tmp_path)
    with connected(load_keys(tmp_path, "stage"), load_keys(tmp_path, "target")) as (port, connection):
        connection.send([b"x"])
        [arrival] = receive(port)
        (tmp_path / "target.public").rename(tmp_path / "stage-a.public")
        time.sleep(RELOAD_S)
        limit_s = time.monotonic() + LIMIT_S
        while not connection.take_break():
            assert time.monotonic() < limit_s
            connection.send([b"x"])
            assert port.receive() == []
            time.sleep(0.01)
            connection.check()
        until(connection, lambda: connection.is_ready)
        connection.send([b"x"])
        [again] = receive(port)
        assert again.peer != arrival.peer
        assert again.caller == Caller("stage-a", "stage")


def test_a_stage_answers_nobody_whose_key_was_removed(tmp_path: Path) -> None:
    """Also one that says nothing any more, and waits for what its pipe computes."""
    generate_keys(tmp_path)
    path = tmp_path / "target.public"
    key = path.read_bytes()
    with connected(load_keys(tmp_path, "stage"), load_keys(tmp_path, "target")) as (port, connection):
        connection.send([b"x"])
        [arrival] = receive(port)
        assert port.send(arrival.peer, Identity(StageId("s")))
        path.unlink()
        time.sleep(RELOAD_S)
        assert not port.send(arrival.peer, Identity(StageId("s")))
        path.write_bytes(key)
        time.sleep(RELOAD_S)
        assert port.send(arrival.peer, Identity(StageId("s")))


def connects_once_mended(folder: Path, public: Path, key: bytes, why: str) -> None:
    """A target is refused for this reason by a stage with keys, and connected once the public key is there."""
    own, context = load_keys(folder, "target"), Context()
    with closing(StagePort("127.0.0.1", 0, load_keys(folder, "stage"), False, AuditLog.off())) as port:
        connection = StageConnection(context, f"tcp://127.0.0.1:{port.port}", own, False, 2.0, "the target")
        try:
            with pytest.raises(ConfigError, match=why):
                until(connection, lambda: connection.is_ready)
            public.write_bytes(key)
            limit_s = time.monotonic() + LIMIT_S
            while not connection.is_ready:
                assert time.monotonic() < limit_s
                time.sleep(0.01)
                with suppress(ConfigError):
                    connection.check()
        finally:
            connection.close()
            context.term()


def test_a_spare_whose_key_is_mended_later_is_connected(tmp_path: Path) -> None:
    generate_keys(tmp_path)
    public = tmp_path / "target.public"
    key = public.read_bytes()
    public.unlink()
    connects_once_mended(tmp_path, public, key, "does not know the key of the target")


def test_a_stage_is_connected_once_its_own_public_key_is_there(tmp_path: Path) -> None:
    """It was another one for a while, as when stages get a new pair."""
    generate_keys(tmp_path)
    public = tmp_path / "stage.public"
    key = public.read_bytes()
    shutil.copy(tmp_path / "hub.public", public)
    connects_once_mended(tmp_path, public, key, "belong to another stage")


@pytest.mark.parametrize("nonsense", [bytes(100), b"\xff" * 64], ids=["zeros", "greeting"])
def test_a_stage_is_connected_although_another_server_was_there(
    nonsense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ does not connect again to what sent something else than ZMTP."""
    monkeypatch.setattr(stage_connection, "GIVEN_UP_S", 0.5)
    context = Context()
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        connection = StageConnection(context, f"tcp://127.0.0.1:{port}", None, False, 2.0, "the target")
        peer, _ = other.accept()
        with closing(peer), suppress(ConnectionResetError):
            peer.sendall(nonsense)
            while peer.recv(1000):
                pass
    try:
        with closing(StagePort("127.0.0.1", port, None, False, AuditLog.off())):
            limit_s = time.monotonic() + LIMIT_S
            while not connection.is_ready:
                assert time.monotonic() < limit_s
                time.sleep(0.01)
                with suppress(ConfigError):
                    connection.check()
    finally:
        connection.close()
        context.term()


def test_a_stage_is_connected_again_after_a_frame_beyond_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ does not connect again to who sent it."""
    monkeypatch.setattr(stage_connection, "GIVEN_UP_S", 0.5)
    monkeypatch.setattr(stage_connection, "MAX_TRAVERSAL_BYTES", 1000)
    with connected() as (port, connection):
        connection.send([b"x"])
        [arrival] = receive(port)
        port.send(arrival.peer, Refused("invalid", "x" * 2000))
        until(connection, connection.take_break)
        until(connection, lambda: connection.is_ready)


def test_a_link_as_far_as_a_satellite_takes_keys(tmp_path: Path) -> None:
    generate_keys(tmp_path)
    context, keys = Context(), load_keys(tmp_path, "stage")
    with (
        closing(StagePort("127.0.0.1", 0, keys, False, AuditLog.off())) as port,
        LabThread(LabLink(to=f"tcp://127.0.0.1:{port.port}", listen="0", shape=LinkShape(delay_ms=400.0))) as lab,
    ):
        connection = StageConnection(context, lab.endpoint(), load_keys(tmp_path, "target"), False, 2.0, "the target")
        try:
            until(connection, lambda: connection.is_ready)
            assert not connection.has_broken
        finally:
            connection.close()
            context.term()


def test_a_port_that_is_open_to_others_needs_keys() -> None:
    with pytest.raises(ConfigError, match=r"the stage would listen on 0\.0\.0\.0 without keys"):
        StagePort("0.0.0.0", 0, None, False, AuditLog.off())
    with (
        Context() as context,
        pytest.raises(ConfigError, match=r"connect to the stage at far\.example without keys"),
    ):
        StageConnection(context, "tcp://far.example:1", None, False, 2.0, "the target")


def test_a_connection_that_cannot_begin_keeps_no_context_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise zmq.ZMQError(zmq.EINVAL)

    monkeypatch.setattr(target_sockets, "connect", refuse)
    context = Context()
    with pytest.raises(ConfigError, match="cannot be connected: Invalid argument"):
        StageConnection(context, "tcp://127.0.0.1:1", None, False, 2.0, "the target")
    context.term()  # an open socket would keep it waiting for ever


def test_a_port_that_closes_is_a_stage_that_is_gone() -> None:
    with connected() as (port, connection):
        connection.send([b"x"])
        receive(port)
        port.close()
        until(connection, lambda: connection.has_broken)
        assert not connection.is_ready
        assert not connection.send([b"x"])
