"""Which targets are drafted for: those that hold a place. No I/O and no clock of its own.

                    room for it, by a margin
    asks ──────────────────────────────────────> HOLDS A PLACE
      ^                                               │  its last tag closed KEEP_S ago, or it left, or
      └───────────────────────────────────────────────┘  it gained nothing, or it came last and somebody lost by
                                                         the others, for PATIENCE_S

A target without a place decodes plainly, and asks again with its next Open. What one review finds is never acted upon
alone: whom to take is decided with one margin, whom to let go with another, after a while (so nobody flaps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from starspec.config import Admission
from starspec.draft.capacity import Demand, LayerCost, gains, none_loses, num_max, typical
from starspec.ids import SessionId

REVIEW_S: Final = 0.5  # between two reviews
KEEP_S: Final = 2.0  # a target between two requests keeps its place for so long
PATIENCE_S: Final = 2.0  # somebody must have lost by the others for so long until one of them goes
STAY_S: Final = 5.0  # who has just come is not sent away
UNKNOWN_S: Final = 5.0  # who cannot be measured for so long, for instance because he asks for nothing, is no load
FORGET_S: Final = 60.0  # of one without a place it is then forgotten what it gains: its requests may be others now
MARGIN: Final = 0.05  # of plain speed: so much more than it to take one in, so much less to let one go
MAX_COUNTED: Final = 256  # targets that N_max is looked for among


@dataclass(frozen=True, slots=True)
class Load:
    """The hub, as far as it has been measured."""

    demands: Mapping[SessionId, Demand]  # of targets that have had enough rounds
    plain_tokens_per_s: Mapping[SessionId, float]  # of targets that have said it
    busy: frozenset[SessionId]  # targets with tags
    cost: LayerCost | None  # None: no layer has been drafted yet
    max_sessions: int | None = None  # in one layer; None = all


@dataclass(slots=True)
class _Place:
    since_s: float
    used_s: float


class Places:
    """Hands out places.

    Args:
        admission: as many places as this; or as many as N_max.
    """

    def __init__(self, admission: Admission) -> None:
        self._fixed = admission if isinstance(admission, int) else None
        self._held: dict[SessionId, _Place] = {}  # first come first
        self._left_s: dict[SessionId, float] = {}  # who had a place and has none, since when
        self._leaver: SessionId | None = None  # who is to go, if that stays so ...
        self._losing_since_s = 0.0  # ... from then on
        self._reviewed_s = float("-inf")
        self.num_max = 0  # at the last review; 0 = not known

    @property
    def num_held(self) -> int:
        return len(self._held)

    def is_held(self, target: SessionId) -> bool:
        return target in self._held

    def ask(self, target: SessionId, load: Load, now: float) -> bool:
        """Whether the target has a place from now on."""
        if target not in self._held and self._has_room(target, load, now):
            self._held[target] = _Place(now, now)
            self._left_s.pop(target, None)
        return target in self._held

    def leave(self, target: SessionId) -> None:
        """The target is gone. Idempotent."""
        self._held.pop(target, None)
        self._left_s.pop(target, None)

    def is_review_due(self, now: float) -> bool:
        return now - self._reviewed_s >= REVIEW_S

    def review(self, load: Load, now: float) -> None:
        """Take back places that are not used, and one by which others have lost for a while."""
        self._reviewed_s = now
        for target, place in list(self._held.items()):
            if target in load.busy:
                place.used_s = now
            elif now - place.used_s >= KEEP_S:
                self._let_go(target, now)
        if self._fixed is not None:
            self.num_max = self._fixed
            return
        measured, leaver = self._measured(load), None
        if measured and load.cost is not None:
            self.num_max = num_max(measured, load.cost, load.max_sessions, MAX_COUNTED)
            leaver = self._who_should_go(load, load.cost)
        if leaver != self._leaver:
            self._leaver, self._losing_since_s = leaver, now
        if leaver is not None:
            due_s = max(self._losing_since_s + PATIENCE_S, self._held[leaver].since_s + STAY_S)
            if now >= due_s:
                self._let_go(leaver, now)

    def _let_go(self, target: SessionId, now: float) -> None:
        del self._held[target]
        self._left_s[target] = now

    def _has_room(self, target: SessionId, load: Load, now: float) -> bool:
        if self._fixed is not None:
            return len(self._held) < self._fixed
        held, cost, measured = self._held.items(), load.cost, self._measured(load)
        num_new = sum(name not in load.demands and now - place.since_s < UNKNOWN_S for name, place in held)
        if not measured or cost is None:
            return num_new == 0  # else it will be known soon
        # what others gain nothing by says nothing of one that has just come
        supposed = [each for each in measured if gains(each, [], cost, load.max_sessions, 0.0)]
        own = self._remembered(target, load, now)
        if own is None and not supposed:
            return num_new == 0
        own = own or _like(typical(supposed), load.plain_tokens_per_s.get(target, 0.0), load.demands.get(target))
        served = [*measured, *[typical(supposed or measured)] * num_new]
        if not gains(own, served, cost, load.max_sessions, MARGIN):
            return False
        return none_loses([*served, own], cost, load.max_sessions, MARGIN)

    def _measured(self, load: Load) -> list[Demand]:
        return [load.demands[target] for target in self._held if target in load.demands]

    def _who_should_go(self, load: Load, cost: LayerCost) -> SessionId | None:
        """One that gains nothing even alone; or the last to come, if anybody loses by others. The only one stays."""
        if len(self._held) < 2:
            return None
        for target in reversed(self._held):
            demand = load.demands.get(target)
            if demand is not None and not gains(demand, [], cost, load.max_sessions, -MARGIN):
                return target
        if none_loses(self._measured(load), cost, load.max_sessions, -MARGIN):
            return None
        return next(reversed(self._held))

    def _remembered(self, target: SessionId, load: Load, now: float) -> Demand | None:
        """What a target asked for when it had a place, unless that was long ago."""
        left_s = self._left_s.get(target)
        return load.demands.get(target) if left_s is not None and now - left_s < FORGET_S else None


def _like(others: Demand, plain_tokens_per_s: float, past: Demand | None) -> Demand:
    """What to expect of a target from what others are like, and from what is said or known of it.

    One that is faster without drafts verifies faster too. As many sequences as it had before it will have again.
    """
    plain_tokens_per_s = plain_tokens_per_s or others.plain_tokens_per_s
    return replace(
        others,
        plain_tokens_per_s=plain_tokens_per_s,
        return_s=others.return_s * others.plain_tokens_per_s / plain_tokens_per_s,
        num_sessions=past.num_sessions if past else others.num_sessions,
    )
