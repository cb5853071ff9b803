"""The thread of a stage that reads its port and sends its answers, however long the stage computes."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
import zmq

from starspec.audit import AuditLog
from starspec.errors import PeerProtocolError
from starspec.ids import PeerId, StageId
from starspec.log_limit import LogLimit
from starspec.wire.callers import Caller
from starspec.wire.codec import Decoder
from starspec.wire.messages import (
    Ask,
    Beat,
    CoordinatorToStage,
    HandshakeMessage,
    Hello,
    Identify,
    Identity,
    Refused,
    StageToCoordinator,
)
from starspec.wire.transports.stage_port import StageArrival, StagePort

TICK_MS: Final = 100  # between looks at whether to end
MAX_QUEUED: Final = 64  # traversals of a sender that were read and are not computed: a few are in flight
MAX_QUEUED_BYTES: Final = 256 * 2**20  # of those of all senders, but for the last one; each sender has half of the rest
MAX_CONTROLS: Final = 1024  # control messages of a sender that the stage has not taken
MAX_ALL_CONTROLS: Final = 8192  # of those of all senders; each sender has half of the rest
NO_STAGE_WANTED: Final = Refused("invalid", "a stage listens at this address, and neither a hub nor a target")

log = structlog.get_logger()


class Control(NamedTuple):
    """A control message that has arrived."""

    peer: PeerId
    caller: Caller | None  # who sent it; None = there are no keys
    message: CoordinatorToStage


AnswerBeat = Callable[[PeerId, Beat], StageToCoordinator]
"""(sender, beat) -> the answer. Called on the inbox's thread, while the stage may compute."""


class StageInbox(threading.Thread):
    """Owns the port. The stage's thread takes what has arrived from one queue, and puts answers into another.

    Beats, and whoever asks who this stage is, are answered at once. A traversal beyond MAX_QUEUED, or beyond the
    sender's bytes, is left out: it is missed by its number. The stage says with `done` when one waits no longer.

    Args:
        port: where the coordinator and the stage before connect.
        stage_id: whom it says that it is.
        sender: the role whose traversals are taken; where there are no keys, everybody's are.
        clock: seconds, monotonic.
        audit: gets traversals of keys that may send none, if given.
    """

    def __init__(
        self,
        port: StagePort,
        stage_id: StageId,
        sender: str,
        answer_beat: AnswerBeat,
        clock: Callable[[], float],
        audit: AuditLog | None = None,
    ) -> None:
        super().__init__(name="starspec-stage-io", daemon=True)
        self._port = port
        self._identity = Identity(stage_id)
        self._sender = sender
        self._answer_beat = answer_beat
        self._audit = audit or AuditLog.off()
        self._decoder: Decoder[CoordinatorToStage | HandshakeMessage] = Decoder(CoordinatorToStage | HandshakeMessage)
        self._log_limit = LogLimit(clock)
        self._arrived: queue.SimpleQueue[Control | StageArrival | None] = queue.SimpleQueue()
        self._answers: deque[tuple[PeerId, StageToCoordinator]] = deque()
        self._lock = threading.Lock()  # of the following
        self._num_waiting: Counter[PeerId] = Counter()  # traversals by sender
        self._num_bytes: Counter[PeerId] = Counter()  # of these
        self._num_controls: Counter[PeerId] = Counter()  # by sender
        self._is_ending = False
        self._wake, self._alarm = socket.socketpair()
        self._wake.setblocking(False)
        self._alarm.setblocking(False)

    def take(self, timeout_s: float) -> list[Control | StageArrival]:
        """What has arrived, in order for each sender. Waits at most so long for the first.

        Raises: RuntimeError if the thread has died.
        """
        found: list[Control | StageArrival] = []
        with contextlib.suppress(queue.Empty):
            each = self._arrived.get(timeout=timeout_s) if timeout_s > 0 else self._arrived.get_nowait()
            while True:
                if each is None:
                    raise RuntimeError("the thread that reads the stage's port has died")
                found.append(each)
                if isinstance(each, Control):
                    self._note(self._num_controls, each.peer, -1)
                each = self._arrived.get_nowait()
        return found

    def done(self, traversal: StageArrival) -> None:
        """One that was taken is computed, or never will be."""
        self._note(self._num_waiting, traversal.peer, -1)
        self._note(self._num_bytes, traversal.peer, -traversal.num_bytes)

    def tell(self, peer: PeerId, message: StageToCoordinator) -> None:
        """Send an answer. Never waits."""
        self._answers.append((peer, message))
        with contextlib.suppress(OSError):  # full: the thread is awake already; closed: it has ended
            self._alarm.send(b"!")

    def end(self) -> None:
        """Send what was told, close the port, and end."""
        self._is_ending = True
        with contextlib.suppress(OSError):
            self._alarm.send(b"!")

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        for each in self._port.sockets:
            poller.register(each, zmq.POLLIN)
        try:
            while not self._is_ending:
                poller.poll(TICK_MS)
                self._send()
                for arrival in self._port.receive():
                    self._sort(arrival)
            self._send()
        finally:
            self._arrived.put(None)
            self._port.close()
            self._wake.close()
            self._alarm.close()

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        while self._answers:
            if not self._port.send(*self._answers.popleft()):
                self._log_limit.log(log.warning, "the coordinator is gone, or does not read")

    def _sort(self, arrival: StageArrival) -> None:
        if arrival.is_traversal:
            self._put(arrival)
            return
        try:
            message = self._decoder.decode(arrival.frames[0])
        except PeerProtocolError as error:
            self._log_limit.log(log.warning, "a control message is dropped", why=str(error))
            return
        if isinstance(message, Beat):
            self._port.send(arrival.peer, self._answer_beat(arrival.peer, message))
        elif isinstance(message, Identify):
            self._port.send(arrival.peer, self._identity)
        elif isinstance(message, Hello | Ask):
            self._port.send(arrival.peer, NO_STAGE_WANTED)
        elif self._takes_control(arrival.peer):
            self._note(self._num_controls, arrival.peer, 1)
            self._arrived.put(Control(arrival.peer, arrival.caller, message))
        else:
            self._log_limit.log(log.warning, "a control message is dropped", why="too many wait")

    def _takes_control(self, peer: PeerId) -> bool:
        with self._lock:
            own, total = self._num_controls[peer], self._num_controls.total()
        return own < min(MAX_CONTROLS, MAX_ALL_CONTROLS - total)

    def _put(self, arrival: StageArrival) -> None:
        is_allowed = arrival.caller is None or arrival.caller.role == self._sender
        with self._lock:
            num, own, total = self._num_waiting[arrival.peer], self._num_bytes[arrival.peer], self._num_bytes.total()
        if not (is_allowed and num < MAX_QUEUED and total < MAX_QUEUED_BYTES and own <= MAX_QUEUED_BYTES - total):
            self._log_limit.log(log.warning, "a traversal is dropped", is_allowed=is_allowed, num_waiting=num)
            if arrival.caller is not None and not is_allowed:
                why = f"only a {self._sender}'s key may send traversals to this stage"
                self._audit.note("refused", key=arrival.caller.key_name, code="key", why=why)
            return
        self._note(self._num_waiting, arrival.peer, 1)
        self._note(self._num_bytes, arrival.peer, arrival.num_bytes)
        self._arrived.put(arrival)

    def _note(self, counts: Counter[PeerId], peer: PeerId, change: int) -> None:
        with self._lock:
            counts[peer] += change
            if not counts[peer]:
                del counts[peer]
