"""Whose turn it is when not all who wait can grow: deficit round robin over targets, by weight.

Shreedhar and Varghese, "Efficient fair queueing using deficit round robin" (1995). Targets take turns; a turn lasts as
long as the target's credit, in draft tokens, and each turn's end brings credit for the next: QUANTUM tokens for each
unit of weight. Two deviations, because a proposal takes several draft steps and is of use only when it is complete:

1. A sequence that has begun goes on in every draft step, whosever turn it is.
2. What that takes beyond the credit is a debt, which the target's next turns pay.

Requests of targets that are behind their latency objective come before all turns, and are charged to nobody (ADR 16).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor

from starspec.ids import LinkId
from starspec.policy.draft_batch import DraftStep, DraftStepSnapshot, Portion, SequenceView, choose_step

QUANTUM = 8.0  # draft tokens of one turn of the lightest target: about a proposal


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """How far the round has come."""

    weights: Mapping[LinkId, float] = field(default_factory=dict)  # above 0; of targets that are not in it, 1
    credits: Mapping[LinkId, float] = field(default_factory=dict)  # tokens; in the order of turns, first comes first

    def with_weight(self, link_id: LinkId, weight: float) -> RoundRobin:
        return RoundRobin({**self.weights, link_id: weight}, self.credits)

    def without(self, link_id: LinkId) -> RoundRobin:
        """The target has left."""
        weights = {each: weight for each, weight in self.weights.items() if each != link_id}
        return RoundRobin(weights, {each: credit for each, credit in self.credits.items() if each != link_id})

    def charged(self, portions: Iterable[Portion]) -> RoundRobin:
        """Targets that have had their turn go on in another draft step; all of them are in the round."""
        left = dict(self.credits)
        for portion in portions:
            left[portion.key.link_id] -= portion.cost
        return RoundRobin(self.weights, left)


def choose_fairly(snapshot: DraftStepSnapshot, turns: RoundRobin) -> tuple[DraftStep, RoundRobin]:
    """Choose the next draft step by turns. As `choose_step`, but for the order of the line.

    Returns: the draft step, and the turns after it.
    """
    order = _FairOrder(turns, snapshot.waiting)
    draft_step = choose_step(snapshot, order)
    return draft_step, order.turns


def jains_index(shares: Iterable[float]) -> float:
    """(sum x)^2 / (n sum x^2): 1 if all have the same, 1/n if one has everything; 1 if nobody has anything."""
    shares = list(shares)
    total, squares = sum(shares), sum(share * share for share in shares)
    return total * total / (len(shares) * squares) if squares else 1.0


class _FairOrder:
    """Those who wait, in the order in which turns reach them. Implements Line."""

    def __init__(self, turns: RoundRobin, waiting: Sequence[SequenceView]) -> None:
        self._weights = turns.weights
        self._urgent = {each.key: each for each in waiting if each.is_urgent}
        waiting = [each for each in waiting if not each.is_urgent]
        self._begun = [each for each in waiting if each.is_begun]
        self._queues: dict[LinkId, deque[SequenceView]] = {}
        for each in waiting:
            if not each.is_begun:
                self._queues.setdefault(each.key.link_id, deque()).append(each)
        present = dict.fromkeys(each.key.link_id for each in waiting)
        self._quantum = QUANTUM / min(map(self._weight, present), default=1.0)  # so that each turn is of use
        # who wants nothing keeps no credit for later, but owes what it owes
        self._credits = {each: credit for each, credit in turns.credits.items() if each in present or credit < 0}
        for target in present:
            self._credits.setdefault(target, self._grant(target))

    def __iter__(self) -> Iterator[SequenceView]:
        yield from self._urgent.values()
        yield from self._begun
        while self._queues:
            target = next(each for each in self._credits if each in self._queues)
            if self._credits[target] <= 0.0:
                self._credits[target] = self._credits.pop(target) + self._grant(target)  # and to the end of the round
                continue
            queue = self._queues[target]
            yield queue.popleft()
            if not queue:
                del self._queues[target]  # for this draft step; its turn is not over

    def expected_order(self) -> Sequence[SequenceView]:
        turns = sorted((target for target in self._credits if target in self._queues), key=self._num_rounds_to_wait)
        return [*self._urgent.values(), *self._begun, *(each for target in turns for each in self._queues[target])]

    def charge(self, portion: Portion) -> None:
        if portion.key not in self._urgent:
            self._credits[portion.key.link_id] -= portion.cost

    @property
    def turns(self) -> RoundRobin:
        return RoundRobin(self._weights, self._credits)

    def _weight(self, target: LinkId) -> float:
        return self._weights.get(target, 1.0)

    def _num_rounds_to_wait(self, target: LinkId) -> int:
        """Rounds of turns until its debt is paid."""
        credit = self._credits[target]
        return 0 if credit > 0.0 else floor(-credit / self._grant(target)) + 1

    def _grant(self, target: LinkId) -> float:
        return self._quantum * self._weight(target)
