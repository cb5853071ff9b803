"""One attempt to attach a member for each position of a pipe: who has answered, and how long the others are waited for.

A stage answers an `Attach` once it has a connection to the next one. One that answers beats meanwhile, and does not
have it in time, is not gone: the link between the two is cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from starspec.ids import PipeEpoch

LINKING_ROUND_TRIPS: Final = 5  # that a connection between two stages takes, keys and `Identify` included


@dataclass(slots=True)
class Attempt:
    """All positions are being attached. Members are numbers, as in `Membership`."""

    epoch: PipeEpoch
    chain: tuple[int, ...]  # the member that is to have each position
    end_s: float  # who has not answered anything is dead
    linked_s: float  # who is alive and has not answered lacks its connection to the next one
    beaten_s: float  # when those that have not answered were last asked for a sign of life
    answers: set[int] = field(default_factory=set)  # members that are attached
    alive: set[int] = field(default_factory=set)  # members that answered beats

    @classmethod
    def begun(
        cls, epoch: PipeEpoch, chain: tuple[int, ...], seen_within_s: float, round_trip_s: float, now: float
    ) -> Attempt:
        """Args: seen_within_s: so soon a death must be seen. round_trip_s: the longest one of the chain."""
        end_s = now + seen_within_s
        return cls(epoch, chain, end_s + round_trip_s, end_s + LINKING_ROUND_TRIPS * round_trip_s, now)

    @property
    def missing(self) -> list[int]:
        """Members that have not answered."""
        return [index for index in self.chain if index not in self.answers]

    def late(self, now: float) -> list[int]:
        """Members that must have answered by now, and have not."""
        return [index for index in self.missing if now >= (self.linked_s if index in self.alive else self.end_s)]

    def is_beat_due(self, beat_s: float, now: float) -> bool:
        """Whether those that have not answered are to be asked for a sign of life. Effects: then they are."""
        is_due = now - self.beaten_s >= beat_s
        if is_due:
            self.beaten_s = now
        return is_due

    def link_behind(self, index: int) -> tuple[int, int] | None:
        """The link that an unanswering member lacks; None if it is dead itself, or the next one is."""
        following = dict(pairwise(self.chain)).get(index)
        if following is None or index not in self.alive or following not in self.alive | self.answers:
            return None
        return index, following
