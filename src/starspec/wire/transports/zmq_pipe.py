"""A coordinator's connections to its stages over ZeroMQ."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import structlog

from starspec.errors import PeerProtocolError
from starspec.log_limit import LogLimit
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, Decoder, encode
from starspec.wire.keys import Keys
from starspec.wire.messages import CoordinatorToStage, StageToCoordinator
from starspec.wire.transports.sockets import GOODBYE_MS, Context, Socket
from starspec.wire.transports.stage_connection import StageConnection
from starspec.wire.transports.waiting import Waiting

log = structlog.get_logger()


class ZmqPipe:
    """Implements PipeLink. Connections that break are made anew; what is sent meanwhile is dropped.

    Args:
        endpoints: of the stages, in the order of their layers, and of spares behind them.
        keys: of role "target".
        is_insecure: allow hosts that are not loopback without keys.
        silence_s: a connection over which nothing comes for longer is made anew.
        waiting: what else ends a wait; this adds its sockets.
    Raises: ConfigError as StageConnection.
    """

    def __init__(
        self, endpoints: Sequence[str], keys: Keys | None, is_insecure: bool, silence_s: float, waiting: Waiting
    ) -> None:
        self._context: Context = Context()
        self._decoder: Decoder[StageToCoordinator] = Decoder(StageToCoordinator, max_frame_bytes=MAX_TRAVERSAL_BYTES)
        self._waiting = waiting
        self._log_limit = LogLimit(time.monotonic)
        self._stages: list[StageConnection] = []
        self._is_closed = False
        try:
            for each in endpoints:
                self._stages.append(StageConnection(self._context, each, keys, is_insecure, silence_s, "the target"))
        except BaseException:
            self.close()
            raise
        waiting.add(self._sockets)

    def missing(self, num_stages: int) -> list[str]:
        """The endpoints of those that are not connected, of the first so many."""
        return [each.endpoint for each in self._stages[:num_stages] if not each.is_ready]

    def control(self, stage: int, message: CoordinatorToStage) -> None:
        """As PipeLink."""
        self._stages[stage].send([encode(message)])

    def send(self, parts: Sequence[bytes | memoryview], stage: int = 0) -> None:
        """As PipeLink."""
        self._stages[stage].send(parts)

    def receive(self, timeout_s: float) -> list[tuple[int, StageToCoordinator]]:
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
            for each in self._stages:
                each.close(GOODBYE_MS)
            self._context.term()

    def _sockets(self) -> Iterable[Socket]:
        return [socket for each in self._stages for socket in each.sockets] if not self._is_closed else []

    def _read(self) -> list[tuple[int, StageToCoordinator]]:
        for each in self._stages:
            each.check()
        return [(index, message) for index, stage in enumerate(self._stages) for message in self._read_one(stage)]

    def _read_one(self, stage: StageConnection) -> list[StageToCoordinator]:
        messages: list[StageToCoordinator] = []
        for frames in stage.read():
            try:
                messages += self._decoder.decode_all(frames)
            except PeerProtocolError as error:
                self._log_limit.log(
                    log.warning, "a stage sends what is no message", stage=stage.endpoint, why=str(error)
                )
        return messages
