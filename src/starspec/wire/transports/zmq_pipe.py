"""A coordinator's connections to its stages over ZeroMQ."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import structlog

from starspec.errors import ConfigError, PeerProtocolError
from starspec.log_limit import LogLimit
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, Decoder, encode
from starspec.wire.keys import Keys
from starspec.wire.messages import CoordinatorToStage, StageToCoordinator
from starspec.wire.stage_news import Broken, FromStage
from starspec.wire.transports.sockets import GOODBYE_MS, Context, Socket
from starspec.wire.transports.stage_connection import StageConnection
from starspec.wire.transports.waiting import Waiting

log = structlog.get_logger()


class ZmqPipe:
    """Implements PipeLink. Connections that break are made anew; what is sent meanwhile is dropped.

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
        return [(index, message) for index, each in enumerate(self._members) for message in self._read_one(each)]

    def _check(self, index: int, member: StageConnection) -> None:
        """Raises: ConfigError as `receive`. A spare may be added or mended later, so it ends nothing."""
        try:
            member.check()
        except ConfigError as error:
            if index < self._num_stages:
                raise
            self._log_limit.log(log.warning, "a spare cannot be connected", why=str(error))

    def _read_one(self, stage: StageConnection) -> list[FromStage]:
        messages: list[FromStage] = []
        for frames in stage.read():
            try:
                messages += self._decoder.decode_all(frames)
            except PeerProtocolError as error:
                self._log_limit.log(
                    log.warning, "a stage sends bytes that are not a message", stage=stage.endpoint, why=str(error)
                )
        if stage.take_break():
            messages.append(Broken())
        return messages
