"""A coordinator's connections to its stages over ZeroMQ."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import structlog

from starspec.errors import ConfigError, PeerProtocolError
from starspec.log_limit import LogLimit
from starspec.policy.backoff import Backoff
from starspec.policy.peer_limits import BAD_WORK, STAGE_BURST, STAGE_PER_S, Allowance, work_of
from starspec.policy.reconnecting import BREACH_S, LONGEST_BREACH_S
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, Decoder, encode
from starspec.wire.keys import Keys
from starspec.wire.messages import CoordinatorToStage, StageToCoordinator
from starspec.wire.stage_news import Broken, FromStage
from starspec.wire.transports.sockets import GOODBYE_MS, Context, Socket
from starspec.wire.transports.stage_connection import StageConnection
from starspec.wire.transports.waiting import Waiting

log = structlog.get_logger()


class _Flood:
    """What one stage may send, and for how long it is left alone after it sent more."""

    def __init__(self) -> None:
        self.allowance = Allowance(STAGE_PER_S, STAGE_BURST)
        self.again_s = 0.0  # when it may be connected again
        self._breaches = Backoff(BREACH_S, LONGEST_BREACH_S, LONGEST_BREACH_S)

    def note_connected(self, now: float) -> None:
        self._breaches.note_success(now)

    def breach(self, now: float) -> float:
        """It has sent too much. Returns: seconds for which it is left alone."""
        pause_s = self._breaches.pause_s(now)
        self.again_s = now + pause_s
        self.allowance = Allowance(STAGE_PER_S, STAGE_BURST)
        return pause_s


class ZmqPipe:
    """Implements PipeLink. Connections that break are made anew; what is sent meanwhile is dropped.

    A stage that floods is left alone for a while, so that reading ends, and others do not wait.

    Args:
        stages: their endpoints, in the order of their layers.
        keys: of role "target".
        is_insecure: allow hosts that are not loopback without keys.
        silence_s: a connection over which nothing comes for longer is made anew.
        waiting: what else ends a wait; this adds its sockets.
        spares: their endpoints. They count behind the stages.
    Raises: ConfigError as StageConnection.
    """

    def __init__(
        self,
        stages: Sequence[str],
        keys: Keys | None,
        is_insecure: bool,
        silence_s: float,
        waiting: Waiting,
        *,
        spares: Sequence[str] = (),
    ) -> None:
        self._context: Context = Context()
        self._decoder: Decoder[StageToCoordinator] = Decoder(StageToCoordinator, max_frame_bytes=MAX_TRAVERSAL_BYTES)
        self._waiting = waiting
        self._log_limit = LogLimit(time.monotonic)
        self._num_stages = len(stages)
        self._members: list[StageConnection] = []
        self._is_closed = False
        try:
            self._floods = [_Flood() for _ in (*stages, *spares)]
            for each in (*stages, *spares):
                self._members.append(StageConnection(self._context, each, keys, is_insecure, silence_s, "the target"))
        except BaseException:
            self.close()
            raise
        waiting.add(self._sockets)

    @property
    def missing(self) -> list[str]:
        """The endpoints of stages that are not connected."""
        return [each.endpoint for each in self._members[: self._num_stages] if not each.is_ready]

    @property
    def missing_spares(self) -> list[str]:
        """The endpoints of spares that are not connected."""
        return [each.endpoint for each in self._members[self._num_stages :] if not each.is_ready]

    def control(self, stage: int, message: CoordinatorToStage) -> None:
        """As PipeLink."""
        self._members[stage].send([encode(message)])

    def send(self, parts: Sequence[bytes | memoryview], stage: int = 0) -> None:
        """As PipeLink."""
        self._members[stage].send(parts)

    def receive(self, timeout_s: float) -> list[tuple[int, FromStage]]:
        """As PipeLink; the wait also ends when something else arrives for which the target waits.

        Raises: ConfigError if a stage was never connected, and cannot be, for a reason that waiting does not change.
        """
        arrived = self._read()
        if not arrived and timeout_s > 0:
            self._waiting.wait(timeout_s)
            arrived = self._read()
        return arrived

    def close(self) -> None:
        """As PipeLink: what was sent has GOODBYE_MS to leave. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for each in self._members:
                each.close(GOODBYE_MS)
            self._context.term()

    def _sockets(self) -> Iterable[Socket]:
        return [socket for each in self._members for socket in each.sockets] if not self._is_closed else []

    def _read(self) -> list[tuple[int, FromStage]]:
        for index, each in enumerate(self._members):
            self._check(index, each)
        return [(index, message) for index in range(len(self._members)) for message in self._read_one(index)]

    def _check(self, index: int, member: StageConnection) -> None:
        """Raises: ConfigError as `receive`. A spare may be added or mended later, so it ends nothing."""
        now, flood = time.monotonic(), self._floods[index]
        if member.floods:
            self._leave(index, now)
        elif member.is_left and now >= flood.again_s:
            member.come_back()
        elif member.is_ready:
            flood.note_connected(now)
        try:
            why = member.check()
        except ConfigError as error:
            if index < self._num_stages:
                raise
            why = str(error)
        if why is not None:
            event = "a stage cannot be connected" if index < self._num_stages else "a spare cannot be connected"
            self._log_limit.log(log.warning, event, why=why)

    def _leave(self, index: int, now: float) -> None:
        """Leave a stage alone: it floods."""
        stage, seconds = self._members[index], self._floods[index].breach(now)
        event = "a stage sends far more than it is asked for; it is left alone for a while"
        self._log_limit.log(log.warning, event, stage=stage.endpoint, seconds=seconds)
        stage.leave()

    def _read_one(self, index: int) -> list[FromStage]:
        messages: list[FromStage] = []
        stage, allowance, now = self._members[index], self._floods[index].allowance, time.monotonic()
        for frames in stage.read():
            if not allowance.take(work_of(frames), now):
                self._leave(index, now)
                break
            try:
                messages += self._decoder.decode_all(frames)
            except PeerProtocolError as error:
                allowance.take(BAD_WORK, now)
                event = "what answers there sends bytes that are not a message: is it a stage, of this release?"
                self._log_limit.log(log.warning, event, stage=stage.endpoint, why=str(error))
        if stage.take_break():
            messages.append(Broken(is_flood=stage.is_left or stage.floods))
        return messages
