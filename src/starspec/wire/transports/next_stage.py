"""A stage's connections to the one behind it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from starspec.errors import PeerProtocolError
from starspec.ids import StageId
from starspec.wire.codec import Decoder, encode
from starspec.wire.keys import Keys
from starspec.wire.messages import Identify, StageToStageBefore
from starspec.wire.transports.sockets import Context
from starspec.wire.transports.stage_connection import StageConnection


class NextStage:
    """Two connections: one for traversals, and one over which nothing but signs of life go.

    On a slow link, an answer that waits behind the hidden states of a long prompt would be late, by as much as these
    take. So none is asked for there. The second connection tells soon that the stage is gone or out of reach. If only
    the first one is cut, nothing arrives: the coordinator sees that, as stages tell it whether anything does.

    Who is there is asked over the connection for traversals: it may lead to another stage than it should.

    Args: as StageConnection; silence_s: of the second connection.
    Raises: as StageConnection.
    """

    def __init__(self, context: Context, endpoint: str, keys: Keys | None, is_insecure: bool, silence_s: float) -> None:
        self.endpoint = endpoint
        self.stage_id: StageId | None = None  # of the stage, once it has said so: then traversals may be sent
        self._has_asked = False
        self._decoder: Decoder[StageToStageBefore] = Decoder(StageToStageBefore)
        self._traversals = StageConnection(context, endpoint, keys, is_insecure, None, "this stage")
        try:
            self._pulse = StageConnection(context, endpoint, keys, is_insecure, silence_s, "this stage")
        except BaseException:
            self._traversals.close()
            raise

    @property
    def has_broken(self) -> bool:
        """Whether it was connected, and then was not."""
        return self._traversals.has_broken or self._pulse.has_broken

    def check(self) -> None:
        """As StageConnection."""
        self._traversals.check()
        self._pulse.check()
        if self.stage_id is None and self._traversals.is_ready and self._pulse.is_ready:
            self._identify()

    def _identify(self) -> None:
        """Ask who is there, and hear the answer."""
        self._has_asked = self._has_asked or self._traversals.send([encode(Identify())])
        frames = next(self._traversals.read(), None)
        if frames is not None:
            with suppress(PeerProtocolError):  # another server, or a flood: it is never known then
                self.stage_id = self._decoder.decode(frames[0]).stage_id

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """As StageConnection."""
        return self._traversals.send(frames)

    def close(self, linger_ms: int = 0) -> None:
        """As StageConnection."""
        self._traversals.close(linger_ms)
        self._pulse.close()
