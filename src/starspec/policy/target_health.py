"""What a gateway concludes from what it hears of a target, and when. No I/O and no clock of its own: `now` is seconds.

A target sends its status when it is asked, every half second. One step of it may take seconds, so silence is no reason
to give its requests up at once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

SILENCE_S: Final = 30.0  # a connected target that sends nothing for so long hangs; one step may take seconds
UNREACHED_S: Final = 60.0  # log a warning if there was no connection for so long: a target listens before it loads
PAUSE_S: Final = 8.0  # if the gateway was suspended for longer, targets may have ended its leases


class TargetHealth(enum.StrEnum):
    """A target as a gateway sees it. Only a READY one gets requests.

    UNREACHABLE ──> STARTING ──> READY <──> SILENT, STOPPING; the end of the connection leads back to UNREACHABLE
    """

    UNREACHABLE = "unreachable"  # no connection
    STARTING = "starting"  # it listens, and loads its model, or waits for stages of it that are gone
    REFUSING = "refusing"  # it is of another release, or no target at all
    READY = "ready"
    SILENT = "silent"  # suspended, hung or out of reach
    STOPPING = "stopping"  # it ends the requests that it has


class Trouble(enum.Enum):
    """What a look at a target has found."""

    SUSPENDED = enum.auto()  # the gateway was: the requests at the target are lost
    STUCK = enum.auto()  # the target has been silent for too long: its requests are lost
    UNREACHED = enum.auto()  # there was no connection for long: people should know


class TargetVitals:
    """The signs of life of one target."""

    def __init__(self, now: float) -> None:
        self._heard_s = self._looked_s = now
        self._is_stuck = False  # it said nothing for SILENCE_S, and has said nothing since
        self._is_missed = False  # it was found to be out of reach

    def hear(self, now: float) -> None:
        """Any message has come."""
        self._heard_s = now

    def note_status(self) -> None:
        """It has told its status, so it works."""
        self._is_missed = self._is_stuck = False

    def note_break(self) -> None:
        """The connection has ended."""
        self._is_stuck = False

    def silence_s(self, now: float) -> float:
        """Seconds since its last message."""
        return now - self._heard_s

    def health(
        self, *, is_connected: bool, is_answering: bool, is_refusing: bool, is_known: bool, is_stopping: bool
    ) -> TargetHealth:
        """Its state.

        Args:
            is_answering: whether its process runs, as far as the last second shows.
            is_refusing: whether it has refused this gateway.
            is_known: whether it has told on this connection that its model is there.
            is_stopping: as its status says.
        """
        if not is_connected:
            return TargetHealth.UNREACHABLE
        if not is_answering or self._is_stuck:
            return TargetHealth.SILENT
        if not is_known:
            return TargetHealth.REFUSING if is_refusing else TargetHealth.STARTING
        return TargetHealth.STOPPING if is_stopping else TargetHealth.READY

    def look(self, now: float, *, unreachable_s: float, is_known: bool) -> Trouble | None:
        """Find out whether the target was silent, or the gateway suspended, for too long. Call it every half second.

        Args:
            unreachable_s: seconds that it has been UNREACHABLE; 0 = it is not.
            is_known: as for `health`.
        """
        gap_s, self._looked_s = now - self._looked_s, now
        if gap_s > PAUSE_S:
            return Trouble.SUSPENDED
        if unreachable_s > UNREACHED_S and not self._is_missed:
            self._is_missed = True
            return Trouble.UNREACHED
        if is_known and self.silence_s(now) > SILENCE_S:
            self._is_stuck = True
            return Trouble.STUCK
        return None


def leaves_silent_target(num_positions: int, *, has_begun: bool, can_move: Callable[[int], bool]) -> bool:
    """Whether a request is taken from a target that is SILENT: it has no output, and another target takes it.

    Args:
        num_positions: of the context that it can need.
        can_move: whether another target takes a request of that many positions.
    """
    return not has_begun and can_move(num_positions)
