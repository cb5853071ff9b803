"""What a coordinator hears from a stage, or about it."""

from __future__ import annotations

from dataclasses import dataclass

from starspec.wire.messages import StageToCoordinator


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection is lost. It is being made anew; what is sent meanwhile is dropped."""

    is_flood: bool = False  # this end has ended it, and leaves the stage alone for a while: it sent far too much


FromStage = StageToCoordinator | Broken
