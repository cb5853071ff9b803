"""Whether a stage lives, as its coordinator sees it. No I/O and no clock of its own: `now` is seconds of one clock.

A stage answers beats from a thread that computes nothing. It counts as dead if it was silent for a while after an
answer was due, and an answer is due a round trip after its beat. So a slow link delays the news of a death, and is not
a death itself. One that sends other things and answers no beat is dead, too, after the longest round trip.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

BEATS: Final = 8  # within the time in which a death must be seen
SILENT_BEATS: Final = 6  # so many without any answer: dead
FIRST_ROUND_TRIP_S: Final = 5.0  # until one is measured
LONGEST_ROUND_TRIP_S: Final = 10.0  # a stage may hold an answer back for hours: it is not waited for so long
MAX_UNANSWERED: Final = 256  # beats that are remembered: those of a minute, if deaths are seen within 2 s
FADE: Final = 0.99  # of the longest round trip, with each further one


class StageLiveness:
    """The signs of life of one stage.

    Args:
        seen_within_s: a death is seen so soon, beside the time that a message takes.
        now: when it was last heard. The first beat is due at once, to measure a round trip.
    """

    def __init__(self, seen_within_s: float, now: float) -> None:
        self.beat_s = seen_within_s / BEATS
        self.round_trip_s = FIRST_ROUND_TRIP_S
        self._is_measured = False
        self._heard_s, self._beaten_s = now, -inf
        self._waiting_s = now  # since then some beat is unanswered, and no answer has come
        self._unanswered: deque[float] = deque(maxlen=MAX_UNANSWERED)  # when these were sent, oldest first

    def is_beat_due(self, now: float) -> bool:
        return now - self._beaten_s >= self.beat_s

    def note_beat(self, now: float) -> None:
        """A beat is sent."""
        self._beaten_s = now
        if not self._unanswered:
            self._waiting_s = now
        self._unanswered.append(now)

    def note_message(self, now: float) -> None:
        """Anything has come."""
        self._heard_s = now

    def note_answer(self, sent_s: float, now: float) -> None:
        """The answer to the beat of `sent_s` has come. What it says is bounded by what was sent."""
        self.note_message(now)
        self._waiting_s = now
        newest_s = None
        while self._unanswered and self._unanswered[0] <= sent_s:
            newest_s = self._unanswered.popleft()
        if newest_s is not None:
            self._note_round_trip(now - newest_s)

    def pardon(self, now: float) -> None:
        """The coordinator was away itself: silence counts from now on, and the next beat is the first to answer."""
        self._heard_s = now
        self._unanswered.clear()

    def is_dead(self, now: float) -> bool:
        """Ask after all messages that have arrived were taken in."""
        return now >= self.dead_s

    @property
    def dead_s(self) -> float:
        """When it is dead if it answers nothing from now on; infinite while no answer is missing."""
        if not self._unanswered:
            return inf
        silent_s = max(self._heard_s, self._unanswered[0] + self.round_trip_s)
        return min(silent_s, self._waiting_s + LONGEST_ROUND_TRIP_S) + SILENT_BEATS * self.beat_s

    def _note_round_trip(self, seconds: float) -> None:
        faded_s = FADE * self.round_trip_s if self._is_measured else 0.0
        self.round_trip_s, self._is_measured = min(LONGEST_ROUND_TRIP_S, max(seconds, faded_s)), True
