"""A coordinator's connections to its stages over ZeroMQ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starspec.errors import PeerLost, PeerProtocolError
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, Decoder, encode
from starspec.wire.keys import Keys
from starspec.wire.messages import CoordinatorToStage, StageToCoordinator
from starspec.wire.transports.sockets import GOODBYE_MS, Context, Socket
from starspec.wire.transports.stage_connection import StageConnection
from starspec.wire.transports.waiting import Waiting


class ZmqPipe:
    """Implements PipeLink: control messages to each stage, traversals to the first, answers from all.

    Args:
        endpoints: of the stages, in the order of their layers.
        keys: of role "target".
        is_insecure: allow hosts that are not loopback without keys.
        silence_s: a stage that answers nothing for longer is gone.
        waiting: what else ends a wait; this adds its sockets.
    Raises: ConfigError as StageConnection.
    """

    def __init__(
        self, endpoints: Sequence[str], keys: Keys | None, is_insecure: bool, silence_s: float, waiting: Waiting
    ) -> None:
        self._context: Context = Context()
        self._decoder: Decoder[StageToCoordinator] = Decoder(StageToCoordinator, max_frame_bytes=MAX_TRAVERSAL_BYTES)
        self._waiting = waiting
        self._stages: list[StageConnection] = []
        self._is_closed = False
        try:
            for each in endpoints:
                self._stages.append(StageConnection(self._context, each, keys, is_insecure, silence_s, "the target"))
        except BaseException:
            self.close()
            raise
        waiting.add(self._sockets)

    @property
    def missing(self) -> list[str]:
        """The endpoints of stages that are not connected yet."""
        return [each.endpoint for each in self._stages if not each.is_ready]

    def control(self, stage: int, message: CoordinatorToStage) -> None:
        """As PipeLink. Raises: PeerLost if the stage does not read."""
        self._stages[stage].send([encode(message)])

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """As PipeLink. Raises: PeerLost if the stage does not read."""
        self._stages[0].send(parts)

    def receive(self, timeout_s: float) -> list[tuple[int, StageToCoordinator]]:
        """As PipeLink; the wait also ends when something else arrives for which the target waits.

        Raises: PeerLost if a stage is gone or sends nonsense; ConfigError if it can never be connected.
        """
        arrived = self._read()
        if not arrived and timeout_s > 0:
            self._waiting.wait(timeout_s)
            arrived = self._read()
        return arrived

    def close(self) -> None:
        """Close all connections. What was sent has GOODBYE_MS to leave. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            for each in self._stages:
                each.close(GOODBYE_MS)
            self._context.term()

    def _sockets(self) -> Iterable[Socket]:
        return [socket for each in self._stages for socket in each.sockets] if not self._is_closed else []

    def _read(self) -> list[tuple[int, StageToCoordinator]]:
        """Read what has arrived before looking for faults: a stage may have said why it ends."""
        arrived = [(index, message) for index, stage in enumerate(self._stages) for message in self._read_one(stage)]
        if not arrived:
            for each in self._stages:
                each.check()
        return arrived

    def _read_one(self, stage: StageConnection) -> list[StageToCoordinator]:
        try:
            return [message for frames in stage.read() for message in self._decoder.decode_all(frames)]
        except PeerProtocolError as error:
            raise PeerLost(f"the stage at {stage.endpoint} broke the protocol: {error}") from error
