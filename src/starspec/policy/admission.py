"""Which targets are drafted for: those that hold a place. No I/O and no clock of its own.

                    room for it, by a margin
    asks ──────────────────────────────────────> HOLDS A PLACE
      ^                                               │  it asked for nothing for a while, or it left, or
      └───────────────────────────────────────────────┘  it gained nothing, or it came last and somebody lost by
                                                         the others, for PATIENCE_S

A target without a place decodes plainly, and asks again with its next Open. What one review finds is never acted upon
alone: whom to take is decided with one margin, whom to let go with another, after a while (so nobody flaps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starspec.config import Admission
from starspec.ids import LinkId
from starspec.policy.capacity import Demand, DraftStepCost, expected, gains, losers, num_max, typical

REVIEW_S: Final = 0.5  # between two reviews
KEEP_S: Final = 2.0  # a target between two requests keeps its place for so long
PAUSE_S: Final = 30.0  # and one with tags that asks for nothing for so long: it may pause after proposals too late
PATIENCE_S: Final = 2.0  # somebody must have lost by the others for so long until one of them goes
STAY_S: Final = 5.0  # who has just come is not sent away
UNKNOWN_S: Final = 5.0  # until then one who has come is waited for to be measured; who asks for nothing is then no load
FORGET_S: Final = 60.0  # what is known of one without a place is then forgotten: its requests may be others now
LONGEST_FORGET_S: Final = 960.0  # each time that it is sent away it takes twice as long, up to this
MARGIN: Final = 0.05  # of plain speed: so much more than it to take one in, so much less to let one go
MAX_COUNTED: Final = 256  # targets that N_max is looked for among


@dataclass(frozen=True, slots=True)
class Load:
    """The hub, as far as it has been measured."""

    demands: Mapping[LinkId, Demand]  # of targets that have had enough rounds
    plain_tokens_per_s: Mapping[LinkId, float]  # of targets that have said it
    busy: frozenset[LinkId]  # targets that are drafted for, or have had a proposal to verify within PAUSE_S
    cost: DraftStepCost | None  # None: no draft step has been drafted yet
    max_sequences: int | None = None  # in one draft step; None = all
    present: frozenset[LinkId] = frozenset()  # targets with tags, busy or not
    num_rows: int | None = None  # sequences that can keep theirs at the same time; None = any number


@dataclass(slots=True)
class _Admitted:
    since_s: float
    used_s: float


@dataclass(frozen=True, slots=True)
class _Past:
    """Of a target that had a place."""

    left_s: float
    forget_s: float


class AdmissionControl:
    """Hands out places.

    Args:
        admission: as many places as this; or as many as N_max.
    """

    def __init__(self, admission: Admission) -> None:
        self._fixed = admission if isinstance(admission, int) else None
        self._admitted: dict[LinkId, _Admitted] = {}  # first come first
        self._past: dict[LinkId, _Past] = {}
        self._losing_since_s: float | None = None
        self._reviewed_s = float("-inf")
        self.num_max = 0  # at the last review; 0 = not known

    @property
    def num_admitted(self) -> int:
        return len(self._admitted)

    def is_admitted(self, target: LinkId) -> bool:
        return target in self._admitted

    def ask(self, target: LinkId, load: Load, now: float) -> bool:
        """Whether the target has a place from now on."""
        if target not in self._admitted and self._has_room(target, load, now):
            self._admitted[target] = _Admitted(now, now)
        return target in self._admitted

    def leave(self, target: LinkId) -> None:
        """The target is gone. Idempotent."""
        self._admitted.pop(target, None)
        self._past.pop(target, None)

    def is_review_due(self, now: float) -> bool:
        return now - self._reviewed_s >= REVIEW_S

    def review(self, load: Load, now: float) -> None:
        """Take back places that are not used, and one by which others have lost for a while."""
        self._reviewed_s = now
        for target, place in list(self._admitted.items()):
            if target in load.busy:
                place.used_s = now
            elif now - place.used_s >= (PAUSE_S if target in load.present else KEEP_S):
                self._let_go(target, FORGET_S, now)
        if self._fixed is not None:
            self.num_max = self._fixed
            return
        measured, leaver = self._measured(load), None
        if measured and load.cost is not None:
            self.num_max = num_max(measured, load.cost, load.max_sequences, _most(measured, load.num_rows))
            leaver = self._who_should_go(load, load.cost)
        if leaver is None:
            self._losing_since_s = None
            return
        if self._losing_since_s is None:
            self._losing_since_s = now
        if now >= max(self._losing_since_s + PATIENCE_S, self._admitted[leaver].since_s + STAY_S):
            past = self._past.get(leaver)
            self._let_go(leaver, min(2.0 * past.forget_s, LONGEST_FORGET_S) if past else FORGET_S, now)
            self._losing_since_s = None

    def _let_go(self, target: LinkId, forget_s: float, now: float) -> None:
        del self._admitted[target]
        self._past[target] = _Past(now, forget_s)

    def _has_room(self, target: LinkId, load: Load, now: float) -> bool:
        if self._fixed is not None:
            return len(self._admitted) < self._fixed
        held, cost, measured = self._admitted.items(), load.cost, self._measured(load)
        unknown = [place for name, place in held if name not in load.demands]
        num_known_soon = sum(now - place.since_s < UNKNOWN_S for place in unknown)
        if num_known_soon >= max(1, len(measured)):
            return False  # of a crowd, as many at once as are measured: what a few rounds of one say is not much
        if not measured or cost is None:
            return load.num_rows is None or len(load.busy) < load.num_rows
        # what others gain nothing by says nothing of one that has just come
        worthy = [each for each in measured if _is_worth_it(each, load, cost)]
        own = self._remembered(target, load, now)
        num_busy = sum(now - place.used_s < UNKNOWN_S for place in unknown)
        served = [*measured, *[typical(worthy or measured)] * num_busy]
        if load.num_rows is not None and _num_sequences([*served, own or typical(measured)]) > load.num_rows:
            return False  # rows would go round, and every round begin with reading what went with them
        if own is None and not worthy:
            return not num_known_soon
        if own is None:
            speed = load.plain_tokens_per_s.get(target, 0.0) or typical(worthy).plain_tokens_per_s
            own = expected(worthy, speed)
        return gains(own, served, cost, load.max_sequences, MARGIN) and not any(
            _is_worth_it(each, load, cost) for each in losers([*served, own], cost, load.max_sequences, MARGIN)
        )

    def _measured(self, load: Load) -> list[Demand]:
        return [load.demands[target] for target in self._admitted if target in load.demands]

    def _who_should_go(self, load: Load, cost: DraftStepCost) -> LinkId | None:
        """If anybody is slower than alone: one that gains next to nothing even alone, else the last to come.

        The only one stays: how long to speculate is its own decision.
        """
        if len(self._admitted) < 2:
            return None
        losing = losers(self._measured(load), cost, load.max_sequences, -MARGIN)
        for target in reversed(self._admitted):
            demand = load.demands.get(target)
            if demand is not None and demand in losing and not _is_worth_it(demand, load, cost):
                return target
        return next(reversed(self._admitted)) if losing else None

    def _remembered(self, target: LinkId, load: Load, now: float) -> Demand | None:
        """What a target asked for when it had a place, unless that was long ago."""
        past = self._past.get(target)
        return load.demands.get(target) if past is not None and now - past.left_s < past.forget_s else None


def _num_sequences(demands: Sequence[Demand]) -> float:
    return sum(each.num_sequences for each in demands)


def _most(measured: Sequence[Demand], num_rows: int | None) -> int:
    """Targets that N_max is looked for among: as many like these as have rows, at least one."""
    if num_rows is None:
        return MAX_COUNTED
    num_fitting = int(num_rows * len(measured) / _num_sequences(measured))
    return min(MAX_COUNTED, max(1, num_fitting))


def _is_worth_it(demand: Demand, load: Load, cost: DraftStepCost) -> bool:
    """Whether drafts make it faster if nobody else is served. Who is not loses nothing by others."""
    return gains(demand, [], cost, load.max_sequences, MARGIN)
