"""Which targets the hub drafts for: those that are admitted. No I/O and no clock of its own.

                    all gain by it, by a margin
    asks ──────────────────────────────────────> ADMITTED
      ^                                              │  it asked for nothing for a while, or it left, or targets were
      └──────────────────────────────────────────────┘  slower than without the hub for PATIENCE_S: then the one goes
                                                        that gains nothing, else the last that came

A target that is not admitted decodes plainly, and asks again with its next Open. Two margins keep targets from going in
and out all the time. A target is admitted only if all gain by more than a margin. It is let go only if some target has
lost more than a margin for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starspec.config import Admission
from starspec.ids import LinkId
from starspec.policy.capacity import Demand, DraftStepCost, expected, gains, losers, num_max, typical

REVIEW_S: Final = 0.5  # between two reviews
KEEP_S: Final = 2.0  # a target without tags stays admitted for so long
PAUSE_S: Final = 30.0  # and one with tags that asks for nothing: it may pause after late proposals
PATIENCE_S: Final = 2.0  # some target must be slower than plain for so long until one is let go
STAY_S: Final = 5.0  # a target that was just admitted is not let go
UNKNOWN_S: Final = 5.0  # a new target is expected to be measured within this; later it counts only if it is in use
FORGET_S: Final = 60.0  # the demand of a target that was let go is then forgotten: it may have changed
LONGEST_FORGET_S: Final = 960.0  # that time doubles whenever the target is let go again, up to this
MARGIN: Final = 0.05  # of plain speed: all must be so much faster to admit one, some so much slower to let one go
MAX_COUNTED: Final = 256  # the largest N_max that is looked for


@dataclass(frozen=True, slots=True)
class Load:
    """What is known of the hub and its targets."""

    demands: Mapping[LinkId, Demand]  # of targets that have had enough rounds
    plain_tokens_per_s: Mapping[LinkId, float]  # of targets that have reported it
    busy: frozenset[LinkId]  # targets that wait for a proposal, or were sent one within PAUSE_S and verify it
    cost: DraftStepCost | None  # None: there was no draft step yet
    max_sequences: int | None = None  # in one draft step; None = all
    present: frozenset[LinkId] = frozenset()  # targets with tags, busy or not
    num_rows: int | None = None  # sequences that can hold one at the same time; None = any number


@dataclass(slots=True)
class _Admitted:
    since_s: float
    used_s: float


@dataclass(frozen=True, slots=True)
class _Past:
    """A target that was admitted before."""

    left_s: float
    forget_s: float


class AdmissionControl:
    """Decides which targets are admitted.

    Args:
        admission: how many targets are admitted at once; `n_max`: as many as gain by it.
    """

    def __init__(self, admission: Admission) -> None:
        self._fixed = admission if isinstance(admission, int) else None
        self._admitted: dict[LinkId, _Admitted] = {}  # in order of admission
        self._past: dict[LinkId, _Past] = {}
        self._losing_since_s: float | None = None
        self._reviewed_s = float("-inf")

    @property
    def num_admitted(self) -> int:
        return len(self._admitted)

    def is_admitted(self, target: LinkId) -> bool:
        return target in self._admitted

    def ask(self, target: LinkId, load: Load, now: float) -> bool:
        """Whether the target is admitted from now on."""
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
        """Let go of targets that ask for nothing. If targets have been slower than plain for a while, let one go."""
        self._reviewed_s = now
        for target, admitted in list(self._admitted.items()):
            if target in load.busy:
                admitted.used_s = now
            elif now - admitted.used_s >= (PAUSE_S if target in load.present else KEEP_S):
                self._let_go(target, FORGET_S, now)
        if self._fixed is not None:
            return
        leaver = None if load.cost is None else self._who_should_go(load, load.cost)
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
        unknown = [admitted for name, admitted in held if name not in load.demands]
        num_known_soon = sum(now - admitted.since_s < UNKNOWN_S for admitted in unknown)
        if num_known_soon >= max(1, len(measured)):
            return False  # of many new targets, admit no more at once than are measured already
        if not measured or cost is None:
            return load.num_rows is None or len(load.busy) < load.num_rows
        # targets that gain nothing say nothing about a new one
        worthy = [each for each in measured if _is_worth_it(each, load, cost)]
        own = self._remembered(target, load, now)
        num_busy = sum(now - admitted.used_s < UNKNOWN_S for admitted in unknown)
        served = [*measured, *[typical(worthy or measured)] * num_busy]
        if load.num_rows is not None and _num_sequences([*served, own or typical(measured)]) > load.num_rows:
            return False  # rows would be evicted all the time, and each round would begin with prefill
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
        """The target to let go if some target is slower than plain; None if all gain.

        It is a slow target that would gain nothing even alone, else the target that was admitted last. A single target
        stays: it decides by itself how long to speculate.
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
        """The demand of a target that was admitted before, unless that was long ago."""
        past = self._past.get(target)
        return load.demands.get(target) if past is not None and now - past.left_s < past.forget_s else None


def count_max(measured: Sequence[Demand], load: Load) -> int:
    """N_max for a hub that serves these targets, whether targets are admitted by it or not; 0 = not known.

    It is at most as many targets like these as have rows.
    """
    if not measured or load.cost is None:
        return 0
    return num_max(measured, load.cost, load.max_sequences, _most(measured, load.num_rows))


def _num_sequences(demands: Sequence[Demand]) -> float:
    return sum(each.num_sequences for each in demands)


def _most(measured: Sequence[Demand], num_rows: int | None) -> int:
    """The largest N_max to look for: as many targets like these as have rows, at least one."""
    if num_rows is None:
        return MAX_COUNTED
    num_fitting = int(num_rows * len(measured) / _num_sequences(measured))
    return min(MAX_COUNTED, max(1, num_fitting))


def _is_worth_it(demand: Demand, load: Load, cost: DraftStepCost) -> bool:
    """Whether drafts make a target faster if the hub serves no other. If not, the others cannot be the reason."""
    return gains(demand, [], cost, load.max_sequences, MARGIN)
