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

    The connection takes `after_loss` when it loses the hub. Apart from that, only `forget_rounds` forgets anything.
    """

    patience: Patience = field(default_factory=Patience)  # with the hub as a whole
    rounds: RecentRounds = field(default_factory=RecentRounds)
    lessons: HubLessons = field(default_factory=HubLessons)  # for a target that weighs drafts by their cost
    room: HubRoom = field(default_factory=HubRoom)  # for a target whose tags wait together for room

    def forget_rounds(self) -> None:
        """Forget what rounds took: a pause begins, and after it the hub may be faster."""
        self.rounds = RecentRounds()
        self.lessons.forget_rounds()

    def after_loss(self) -> HubRecord:
        """The record of the hub that comes back, perhaps another one: all of it is new but what prefill costs."""
        return HubRecord(lessons=self.lessons.after_loss())
