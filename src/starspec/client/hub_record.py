"""What a target has learnt about one hub."""

from __future__ import annotations

from dataclasses import dataclass, field

from starspec.policy.deadline import RecentRounds
from starspec.policy.length.hub_lessons import HubLessons
from starspec.policy.patience import Patience
from starspec.policy.reopening import HubRoom


@dataclass(slots=True)
class HubRecord:
    """What this target has learnt about one hub.

    The connection begins a new record when it loses the hub. Apart from that, only `forget_rounds` forgets anything.
    """

    patience: Patience = field(default_factory=Patience)  # with the hub as a whole
    rounds: RecentRounds = field(default_factory=RecentRounds)
    lessons: HubLessons = field(default_factory=HubLessons)  # for a target that weighs drafts by their cost
    room: HubRoom = field(default_factory=HubRoom)  # for a target whose tags wait together for room

    def forget_rounds(self) -> None:
        """Forget what rounds took: a pause begins, and after it the hub may be faster."""
        self.rounds = RecentRounds()
        self.lessons.forget_rounds()
