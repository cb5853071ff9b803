"""When a target may open a tag at its hub again, after the hub has dropped the tag, or while it has no room.

The classes have no clock and do no I/O: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starspec.policy.backoff import Backoff

MIN_RETRY_S: Final = 0.1  # a hub without room is not asked again sooner, whatever it says
MAX_RETRY_S: Final = 60.0  # whatever a hub says: it may have room sooner, or be replaced
REOPEN_S: Final = 0.25  # before a tag is opened again that was opened again before ...
LONGEST_REOPEN_S: Final = 8.0  # ... and up to this, twice as long each time,
SETTLED_S: Final = 5.0  # unless the hub has drafted for it for so long
ASK_AGAIN_S: Final = 1.0  # a full hub is asked again after this, as the tag that asked may have been closed


class Reopening:
    """When the hub may get the next message about one tag."""

    def __init__(self) -> None:
        self._at_s = 0.0  # inf = never
        self._reopens = Backoff(REOPEN_S, LONGEST_REOPEN_S, SETTLED_S, num_free=1)

    @property
    def is_forbidden(self) -> bool:
        """Whether the tag can never be opened again."""
        return self._at_s == inf

    def is_due(self, now: float) -> bool:
        """Whether a message may be sent."""
        return now >= self._at_s

    def note_proposal(self, now: float) -> None:
        """A proposal has come, so the hub holds the tag."""
        self._reopens.note_success(now)

    def note_reopen(self, now: float) -> None:
        """The hub says that it does not hold the tag.

        The first time the tag may be opened again at once: the hub may have missed a verdict, or failed. A hub that
        says so again and again would get the whole text each time.
        """
        self._at_s = max(self._at_s, now + self._reopens.pause_s(now))

    def note_declined(self, now: float, retry_after_s: float) -> None:
        """The hub has no room for the tag, and says when to ask again."""
        self._at_s = now + _bounded(retry_after_s)

    def forbid(self) -> None:
        """No message can hold the tokens."""
        self._at_s = inf


class HubRoom:
    """When a hub that declined a tag is asked again, for a target whose tags wait together."""

    def __init__(self) -> None:
        self._ask_again_s = 0.0  # open no tag before this time; 0 = the hub has room

    @property
    def is_full(self) -> bool:
        """Whether the hub had no room for the last tag that was opened."""
        return self._ask_again_s > 0.0

    def may_ask(self, now: float) -> bool:
        """Whether tags may be opened."""
        return now >= self._ask_again_s

    def note_declined(self, now: float, retry_after_s: float) -> None:
        """The hub has no room, and says when to ask again."""
        self._ask_again_s = now + _bounded(retry_after_s)

    def note_opening(self, now: float) -> None:
        """An `Open` is sent. If the hub was full, only this tag asks now whether there is room."""
        if self.is_full:
            self._ask_again_s = now + ASK_AGAIN_S

    def note_room(self) -> None:
        """The hub has drafted for a tag that was just opened, so it has room, as far as is known."""
        self._ask_again_s = 0.0


def _bounded(retry_after_s: float) -> float:
    """What a hub said, within what a target believes."""
    return min(MAX_RETRY_S, max(MIN_RETRY_S, retry_after_s))
