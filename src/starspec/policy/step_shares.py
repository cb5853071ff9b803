"""How much of a draft step each target may have while others ask for drafts, too.

All sequences of a draft step wait for its end. So a target with many sequences would slow down one with few, although
those few are in every draft step. The rule: a draft step takes at most so many times as long as one with a target's own
sequences alone as there are targets that ask (by weight: all weights over its own). So no target gets less than from a
hub that divides its time among them. As many sequences of the others as fit are in the draft step. What fits is shared
by weight, in units of size: a sequence is one, and each token that it adds is one.

    c(size) = 9 ms + 0.5 ms for each unit; 2 units for each sequence      a draft step takes at most
    target a    1 sequence                                                2 c(2)   = 20 ms, so b has 10 sequences in it
    target b    60 sequences                                              2 c(120) = 138 ms
    b alone                                                               as long as it likes

A target asks while a sequence of it waits, and while it verifies: it will be back soon, and should not find that a long
draft step has just begun. Targets with equally many sequences never limit each other, whatever a draft step costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final, NamedTuple

from starspec.ids import LinkId
from starspec.policy.capacity import DraftStepCost
from starspec.policy.draft_batch import TagKey

AWAY_S: Final = 2.0  # a sequence whose proposal is in verification for longer than this does not ask
ROUNDING: Final = 1e-9  # relative


class AskingTags:
    """Which tags of each target ask for drafts. Every method takes O(1), on average."""

    def __init__(self) -> None:
        self.num_waiting: Counter[LinkId] = Counter()  # tags that wait for draft steps; no target with none
        self.num_away: Counter[LinkId] = Counter()  # tags that ask and do not wait; no target with none
        self._waiting: set[TagKey] = set()
        self._away: dict[TagKey, float] = {}  # since when, oldest first

    def wait(self, key: TagKey) -> None:
        """The tag waits for draft steps."""
        if key not in self._waiting:
            self.stop(key)
            self._waiting.add(key)
            self.num_waiting[key.link_id] += 1

    def go_away(self, key: TagKey, now: float) -> None:
        """The tag has got a proposal, and will ask for the next one after its verdict."""
        self.stop(key)
        self._away[key] = now
        self.num_away[key.link_id] += 1

    def stop(self, key: TagKey) -> None:
        """The tag does not ask. Idempotent."""
        if key in self._waiting:
            self._waiting.discard(key)
            _take_one(self.num_waiting, key.link_id)
        elif self._away.pop(key, None) is not None:
            _take_one(self.num_away, key.link_id)

    def forget_late(self, now: float) -> None:
        """Tags that are away for longer than AWAY_S do not ask any more."""
        while self._away:
            key, since_s = next(iter(self._away.items()))
            if now - since_s <= AWAY_S:
                return
            self.stop(key)

    @property
    def num_asking(self) -> Counter[LinkId]:
        """Tags of each target that asks."""
        return self.num_waiting + self.num_away


class AskingTarget(NamedTuple):
    """What one target asks of draft steps."""

    num_sequences: int  # at least 1
    size_each: float  # that each of them adds to a draft step
    weight: float

    @property
    def size(self) -> float:
        return self.num_sequences * self.size_each


class StepShares(NamedTuple):
    """How much of a draft step each target may have."""

    most: Mapping[LinkId, int]  # sequences; a target that is not in it may have all of its own
    equal_s: float  # of a draft step in which all have as much as the one that asks for the least, by weight


EVERYTHING: Final = StepShares({}, inf)  # for a target that is alone


def step_shares(asking: Mapping[LinkId, AskingTarget], cost: DraftStepCost) -> StepShares:
    """Share draft steps among the targets that ask.

    Args:
        cost: of a draft step by its size: a unit counts as a sequence.
    """
    if len(asking) < 2:
        return EVERYTHING
    all_weights = sum(each.weight for each in asking.values())
    least = min(each.size / each.weight for each in asking.values())
    equal_s = cost.seconds(sum(min(each.size, least * each.weight) for each in asking.values()))
    longest_s = min(all_weights / each.weight * cost.seconds(each.size) for each in asking.values())
    if cost.seconds(sum(each.size for each in asking.values())) <= longest_s * (1 + ROUNDING):
        return StepShares({}, equal_s)
    level = _level(asking, 1.0 + (longest_s - cost.alone_s) / cost.per_sequence_s)
    most = {
        target: max(1, int(level * each.weight / each.size_each + ROUNDING))
        for target, each in asking.items()
        if each.size > level * each.weight * (1 + ROUNDING)
    }
    return StepShares(most, equal_s)


def _level(asking: Mapping[LinkId, AskingTarget], size: float) -> float:
    """What each target gets for each unit of weight, if so much is shared and no target gets more than it asks for.

    Args:
        size: less than they all ask for.
    """
    weight = sum(each.weight for each in asking.values())
    for each in sorted(asking.values(), key=lambda each: each.size / each.weight):
        if each.size / each.weight > size / weight:
            break
        size -= each.size
        weight -= each.weight
    return size / weight


def _take_one(num_tags: Counter[LinkId], link_id: LinkId) -> None:
    num_tags[link_id] -= 1
    if not num_tags[link_id]:
        del num_tags[link_id]
