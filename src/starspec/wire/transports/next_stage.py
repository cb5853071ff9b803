"""A stage's connections to the one behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starspec.wire.keys import Keys
from starspec.wire.transports.sockets import Context
from starspec.wire.transports.stage_connection import StageConnection

HIDDEN_PATIENCE: Final = 5  # times `silence_s`: signs of life wait behind hidden states


class NextStage:
    """Two connections: one for traversals, and one over which nothing but signs of life go.

    On a slow link, an answer that waits behind the hidden states of a long prompt would be late. The second connection
    tells soon that the stage is gone or out of reach, and does not take a slow link for that.

    Args: as StageConnection.
    Raises: as StageConnection.
    """

    def __init__(self, context: Context, endpoint: str, keys: Keys | None, is_insecure: bool, silence_s: float) -> None:
        self.endpoint = endpoint
        self._traversals = StageConnection(
            context, endpoint, keys, is_insecure, HIDDEN_PATIENCE * silence_s, "this stage"
        )
        try:
            self._pulse = StageConnection(context, endpoint, keys, is_insecure, silence_s, "this stage")
        except BaseException:
            self._traversals.close()
            raise

    @property
    def is_ready(self) -> bool:
        """Whether what is sent now goes to the stage."""
        return self._traversals.is_ready and self._pulse.is_ready

    @property
    def has_broken(self) -> bool:
        """Whether it was connected, and then was not."""
        return self._traversals.has_broken or self._pulse.has_broken

    def check(self) -> None:
        """As StageConnection."""
        self._traversals.check()
        self._pulse.check()

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """As StageConnection."""
        return self._traversals.send(frames)

    def close(self, linger_ms: int = 0) -> None:
        """As StageConnection."""
        self._traversals.close(linger_ms)
        self._pulse.close()
