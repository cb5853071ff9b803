"""Whether a hub is worth waiting for. No I/O and no clock of its own: `now` is seconds of one monotonic clock.

     the link has ended; or the hub was silent for a whole wait, and then did not answer a ping for 0.25 s
     (a busy hub answers pings, a hub that hangs does not)
FOUND ─────────────────────────────────────────────────────────> LOST
      <─────────────────────────────────────────────────────────
     a new link; or any message after the pause (0.25 s, and twice as long each time that the hub is soon lost again)
"""

from __future__ import annotations

from math import inf
from typing import Final

from starspec.stats import HubState

PING_INTERVAL_S: Final = 0.5  # between two pings; their answers also show that a lost hub is back
DOUBT_S: Final = 0.25  # for the answer to a ping; no round waits for it
MIN_PAUSE_S: Final = 0.25  # for this long a silent hub is not waited for again ...
MAX_PAUSE_S: Final = 4.0  # ... or for up to this long, if it is silent again and again
RELAPSE_S: Final = 5.0  # a hub that is lost again within this time gets a pause that is twice as long


class HubLiveness:
    """A hub is lost at first, since nothing has been heard."""

    def __init__(self, now: float) -> None:
        self.is_lost = True
        self.num_found = 0
        self._since_s = now  # when it was lost or found last
        self._lost_before_s = 0.0  # seconds, without the present time lost
        self._pause_s = MIN_PAUSE_S
        self._lost_at_s = inf  # unless a message comes before

    @property
    def state(self) -> HubState:
        if self.is_lost:
            return "lost" if self.num_found else "connecting"
        return "connected"

    def state_s(self, now: float) -> float:
        """Seconds since the hub was lost or found last, or since the start."""
        return now - self._since_s

    def lost_s(self, now: float) -> float:
        """Seconds without a usable hub so far."""
        return self._lost_before_s + (now - self._since_s if self.is_lost else 0.0)

    def note_message(self) -> None:
        """Any message has come."""
        self._lost_at_s = inf

    def suspect(self, now: float) -> None:
        """The hub was silent for a whole wait, and a ping is sent."""
        self._lost_at_s = min(self._lost_at_s, now + DOUBT_S)

    def hangs(self, now: float) -> bool:
        """Whether the hub is lost now. Ask after all messages that have arrived were taken in."""
        return now >= self._lost_at_s

    def may_be_found(self, now: float) -> bool:
        """Whether the pause is over, so that a message finds the hub."""
        return now - self._since_s >= self._pause_s

    def lose(self, now: float) -> None:
        """From found to lost."""
        is_relapse = now - self._since_s < RELAPSE_S
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S) if is_relapse else MIN_PAUSE_S
        self.is_lost = True
        self._since_s, self._lost_at_s = now, inf

    def find(self, now: float) -> None:
        """From lost to found."""
        self._lost_before_s += now - self._since_s
        self.is_lost = False
        self.num_found += 1
        self._since_s = now
