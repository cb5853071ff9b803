"""Which sequences grow next if not all that wait can: deficit round robin over targets, by weight.

Shreedhar and Varghese, "Efficient fair queueing using deficit round robin" (1995). A target is served while its deficit
counter is above 0; each draft token that it takes lowers the counter. Then the next target is served, and the counter
is raised by the target's quantum: QUANTUM draft tokens for each unit of weight. Two deviations, because a proposal
takes several draft steps and is of use only when it is complete:

1. A sequence that has started is in every draft step, whichever target is served.
2. This may lower a counter below 0. The target is then passed over until quanta have raised it again.

Requests of targets that miss their latency objective come first, and lower no counter (ADR 16).

Targets also share the tags of a hub: `target_to_take_from` and `tag_to_drop`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import NamedTuple

from starspec.ids import LinkId
from starspec.policy.draft_batch import (
    DraftStep,
    DraftStepSnapshot,
    ScheduledSequence,
    SequenceView,
    TagKey,
    choose_step,
)

QUANTUM = 8.0  # draft tokens: about a proposal, for the target with the least weight


@dataclass(frozen=True, slots=True)
class DeficitRoundRobin:
    """The state of the round robin."""

    weights: Mapping[LinkId, float] = field(default_factory=dict)  # above 0; 1 for targets that are not in it
    deficits: Mapping[LinkId, float] = field(default_factory=dict)  # counters, in the order of service

    def with_weight(self, link_id: LinkId, weight: float) -> DeficitRoundRobin:
        return DeficitRoundRobin({**self.weights, link_id: weight}, self.deficits)

    def without(self, link_id: LinkId) -> DeficitRoundRobin:
        """The state after the target has left."""
        weights = {each: weight for each, weight in self.weights.items() if each != link_id}
        return DeficitRoundRobin(weights, {each: deficit for each, deficit in self.deficits.items() if each != link_id})

    def charged(self, sequences: Iterable[ScheduledSequence]) -> DeficitRoundRobin:
        """The state after one more draft step of these sequences. Their targets must have a counter."""
        left = dict(self.deficits)
        for scheduled in sequences:
            left[scheduled.key.link_id] -= scheduled.cost
        return DeficitRoundRobin(self.weights, left)


def choose_fairly(snapshot: DraftStepSnapshot, round_robin: DeficitRoundRobin) -> tuple[DraftStep, DeficitRoundRobin]:
    """Choose the next draft step as `choose_step` does, in the order of deficit round robin.

    Returns: the draft step, and the state of the round robin after it.
    """
    order = _DrrOrder(round_robin, snapshot.waiting)
    draft_step = choose_step(snapshot, order)
    return draft_step, order.round_robin


class RequestStanding(NamedTuple):
    """What gives a waiting sequence precedence over the targets' turns."""

    is_urgent: bool  # its target misses its latency objective
    has_started: bool  # it was in a draft step for its request


def first_in_order(waiting: Sequence[RequestStanding]) -> list[int]:
    """Indices in `waiting` of those that come before any target's turn: urgent sequences, then those that have started.

    As `choose_fairly` orders them.
    """
    urgent = [index for index, each in enumerate(waiting) if each.is_urgent]
    return urgent + [index for index, each in enumerate(waiting) if each.has_started and not each.is_urgent]


class HeldTag(NamedTuple):
    """One tag that a target has at the hub."""

    key: TagKey
    is_owed: bool  # a proposal
    last_used_s: float  # when it last sent a request or got a proposal


def target_to_take_from(held: Mapping[LinkId, int], taker: LinkId, num_more: int = 1) -> LinkId | None:
    """Which target loses a tag to another if the hub has no place for more; None = the other gets none.

    The target that holds the most loses one, unless it would then hold less than the other. So targets that want more
    than there is end with equal shares.

    Args:
        held: what each target has, tags or tokens; not empty.
        num_more: of the same, for the other target.
    """
    largest = max(held, key=lambda each: held[each])
    return largest if held[largest] > held[taker] + num_more else None


def tag_to_drop(tags: Iterable[HeldTag]) -> TagKey:
    """Which of its tags, at least one, such a target loses: one without a request, the one used least recently."""
    return min(tags, key=lambda each: (each.is_owed, each.last_used_s)).key


def jains_index(shares: Iterable[float]) -> float:
    """(sum x)^2 / (n sum x^2): 1 if all shares are equal or 0, 1/n if one share is everything."""
    shares = list(shares)
    total, squares = sum(shares), sum(share * share for share in shares)
    return total * total / (len(shares) * squares) if squares else 1.0


class _DrrOrder:
    """Waiting sequences in the order of deficit round robin. Implements `WaitingOrder`."""

    def __init__(self, round_robin: DeficitRoundRobin, waiting: Sequence[SequenceView]) -> None:
        self._weights = round_robin.weights
        self._urgent = {each.key: each for each in waiting if each.is_urgent}
        waiting = [each for each in waiting if not each.is_urgent]
        self._started = [each for each in waiting if each.has_started]
        self._queues: dict[LinkId, deque[SequenceView]] = {}
        for each in waiting:
            if not each.has_started:
                self._queues.setdefault(each.key.link_id, deque()).append(each)
        present = dict.fromkeys(each.key.link_id for each in waiting)
        # of weight 1, such that the least weight gets QUANTUM: less would not be enough for a proposal
        self._quantum = QUANTUM / min(map(self._weight, present), default=1.0)
        # a target without requests loses what is left of its quantum, but keeps a counter below 0
        self._deficits = {
            each: deficit for each, deficit in round_robin.deficits.items() if each in present or deficit < 0
        }
        for target in present:
            self._deficits.setdefault(target, self._quantum_of(target))

    def __iter__(self) -> Iterator[SequenceView]:
        yield from self._urgent.values()
        yield from self._started
        while self._queues:
            target = next(each for each in self._deficits if each in self._queues)
            if self._deficits[target] <= 0.0:
                deficit = self._deficits.pop(target)  # the target goes to the end of the list
                self._deficits[target] = deficit + self._quantum_of(target)
                continue
            queue = self._queues[target]
            yield queue.popleft()
            if not queue:
                del self._queues[target]  # for this draft step; the target keeps its position in the list

    def expected_order(self) -> Sequence[SequenceView]:
        targets = sorted((target for target in self._deficits if target in self._queues), key=self._num_passes_to_wait)
        return [*self._urgent.values(), *self._started, *(each for target in targets for each in self._queues[target])]

    def charge(self, scheduled: ScheduledSequence) -> None:
        if scheduled.key not in self._urgent:
            self._deficits[scheduled.key.link_id] -= scheduled.cost

    @property
    def round_robin(self) -> DeficitRoundRobin:
        return DeficitRoundRobin(self._weights, self._deficits)

    def _weight(self, target: LinkId) -> float:
        return self._weights.get(target, 1.0)

    def _num_passes_to_wait(self, target: LinkId) -> int:
        """How often all targets are passed until its counter is above 0."""
        deficit = self._deficits[target]
        return 0 if deficit > 0.0 else floor(-deficit / self._quantum_of(target)) + 1

    def _quantum_of(self, target: LinkId) -> float:
        return self._quantum * self._weight(target)
