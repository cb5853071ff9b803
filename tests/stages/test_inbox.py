"""The thread that reads a stage's port: it answers beats however long the stage computes, and bounds what waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from starspec.audit import AuditLog
from starspec.ids import PeerId, PipeEpoch, StageId, TargetId
from starspec.stages.inbox import MAX_CONTROLS, MAX_QUEUED, NO_STAGE_WANTED, Control, StageInbox
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import PROTOCOL_VERSION, Alive, Ask, Beat, Detach, Gap, Hello, StageToCoordinator
from starspec.wire.transports.sockets import Context
from starspec.wire.transports.stage_connection import StageConnection
from starspec.wire.transports.stage_port import StageArrival, StagePort

LIMIT_S = 10.0
EPOCH = PipeEpoch(3)
STAGE = StageId("0123456789abcdef")
DECODER: Decoder[StageToCoordinator] = Decoder(StageToCoordinator)


def alive(peer: PeerId, beat: Beat) -> Alive:
    return Alive(beat.pipe_epoch, beat.sent_s, is_busy=True)


@contextmanager
def reading(answer_beat=alive) -> Iterator[tuple[StageInbox, StageConnection]]:
    """An inbox of a stage that takes nothing by itself, and its coordinator."""
    port, context = StagePort("127.0.0.1", 0, None, False, AuditLog.off()), Context()
    connection = StageConnection(context, f"tcp://127.0.0.1:{port.port}", None, False, LIMIT_S, "the target")
    inbox = StageInbox(port, STAGE, "target", answer_beat, time.monotonic)
    inbox.start()
    try:
        limit_s = time.monotonic() + LIMIT_S
        while not connection.is_ready:
            assert time.monotonic() < limit_s
            connection.check()
        yield inbox, connection
    finally:
        inbox.end()
        inbox.join(LIMIT_S)
        connection.close()
        context.term()


def answer(connection: StageConnection) -> StageToCoordinator:
    limit_s = time.monotonic() + LIMIT_S
    while time.monotonic() < limit_s:
        for frames in connection.read():
            return DECODER.decode(frames[0])
    raise AssertionError("no answer")


def test_a_flood_is_bounded_and_beats_are_answered_behind_it_while_nobody_takes_anything() -> None:
    with reading() as (inbox, connection):
        for _ in range(MAX_QUEUED + 10):
            assert connection.send([b"a", b"b", b"c"])
        connection.send([encode(Beat(EPOCH, 7.5))])
        assert answer(connection) == Alive(EPOCH, 7.5, is_busy=True)
        arrived = inbox.take(0.0)
        assert len(arrived) == MAX_QUEUED
        connection.send([b"a", b"b", b"c"])
        connection.send([encode(Beat(EPOCH, 8.5))])
        assert answer(connection) == Alive(EPOCH, 8.5, is_busy=True)  # so what was sent before is read
        assert inbox.take(0.0) == [], "those that were taken are not computed yet"
        for each in arrived:
            assert isinstance(each, StageArrival)
            inbox.done(each)
        connection.send([b"a", b"b", b"c"])
        assert len(inbox.take(LIMIT_S)) == 1


def test_control_messages_that_nobody_takes_are_bounded() -> None:
    with reading() as (inbox, connection):
        for _ in range(MAX_CONTROLS + 10):
            while not connection.send([encode(Detach(EPOCH))]):
                time.sleep(0.01)
        connection.send([encode(Beat(EPOCH, 7.5))])
        assert answer(connection) == Alive(EPOCH, 7.5, is_busy=True)
        assert len(inbox.take(0.0)) == MAX_CONTROLS


@pytest.mark.parametrize("message", [Ask(PROTOCOL_VERSION), Hello(PROTOCOL_VERSION, TargetId("t"), 100, "f")])
def test_whoever_takes_the_stage_for_a_target_or_a_hub_is_told_so(message: Ask | Hello) -> None:
    with reading() as (_, connection):
        connection.send([encode(message)])
        assert answer(connection) == NO_STAGE_WANTED


def test_control_messages_keep_their_order_and_their_sender_is_answered() -> None:
    with reading() as (inbox, connection):
        connection.send([b"nonsense"])
        connection.send([encode(Detach(EPOCH))])
        [control] = inbox.take(LIMIT_S)
        assert isinstance(control, Control)
        assert control.message == Detach(EPOCH)
        inbox.tell(control.peer, Gap(EPOCH, 1, "why"))
        assert answer(connection) == Gap(EPOCH, 1, "why")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stage_whose_reading_thread_has_died_ends() -> None:
    def fails(peer: PeerId, beat: Beat) -> Alive:
        raise ZeroDivisionError

    with reading(fails) as (inbox, connection):
        connection.send([encode(Beat(EPOCH))])
        with pytest.raises(RuntimeError, match="has died"):
            inbox.take(LIMIT_S)
