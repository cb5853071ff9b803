"""What a coordinator needs of its connections to the stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starspec.wire.messages import CoordinatorToStage
from starspec.wire.stage_news import FromStage


class PipeLink(Protocol):
    """The coordinator's connections to the stages, numbered as it was given them, the spares behind them."""

    def control(self, stage: int, message: CoordinatorToStage) -> None:
        """Send to any stage. Never waits."""
        ...

    def send(self, parts: Sequence[bytes | memoryview], stage: int = 0) -> None:
        """Send a traversal to the stage that is the first one now. Never waits."""
        ...

    def receive(self, timeout_s: float) -> Sequence[tuple[int, FromStage]]:
        """What stages sent, or that the connection broke, each with its stage.

        Waits at most so long for the first, or for something else.
        """
        ...

    def close(self) -> None:
        """End the connections, once what was sent has left."""
        ...
