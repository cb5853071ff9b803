"""Whether a hub is worth waiting for. No I/O and no clock of its own: `now` is seconds of one monotonic clock.

     the connection is gone; or a round waited without a word, and a ping is unanswered for 0.25 s
     (a hub that computes answers too, one that hangs does not)
FOUND ─────────────────────────────────────────────────────────> LOST
      <─────────────────────────────────────────────────────────
     a new connection, or a word after the pause (0.25 s; twice as long each time that it is soon lost again)
"""

from __future__ import annotations

from math import inf
from typing import Final

PING_INTERVAL_S: Final = 0.5  # of a hub that may be heard; also what a lost one is found by
DOUBT_S: Final = 0.25  # what an answer to a ping may take; nobody waits for it
MIN_PAUSE_S: Final = 0.25  # a hub that fell silent is not waited for again before this ...
MAX_PAUSE_S: Final = 4.0  # ... or up to this, if it keeps falling silent
RELAPSE_S: Final = 5.0  # lost again within this: the next pause is twice as long


class HubLiveness:
    """Begins lost: nothing has been heard yet."""

    def __init__(self, now: float) -> None:
        self.is_lost = True
        self.num_found = 0
        self._since_s = now  # lost or found
        self._lost_before_s = 0.0  # seconds lost, without the present time
        self._pause_s = MIN_PAUSE_S
        self._lost_at_s = inf  # unless a word is heard before

    def lost_s(self, now: float) -> float:
        """Seconds without a usable hub so far."""
        return self._lost_before_s + (now - self._since_s if self.is_lost else 0.0)

    def hear(self) -> None:
        """A word of it, whatever it says."""
        self._lost_at_s = inf

    def doubt(self, now: float) -> None:
        """A round has waited without a word; a ping goes out."""
        self._lost_at_s = min(self._lost_at_s, now + DOUBT_S)

    def hangs(self, now: float) -> bool:
        """Whether it is to be given up, if all that has arrived is read."""
        return now >= self._lost_at_s

    def may_be_found(self, now: float) -> bool:
        """Whether a word of a lost hub counts yet."""
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
