"""How much of a draft server's time the laws of one target's requests may take while other targets ask for drafts.

A draft step forwards sequences of all targets, then draws the children of each node by the law of its request:
temperature, penalties, biases. Most laws take some tenths of a millisecond for a node. One with penalties and a
thousand biases takes some milliseconds, and a tree may have sixteen nodes of one depth. `step_shares.py` counts
sequences and tokens, and does not see this. The rule is the same: no target gets less than from a hub that divides its
time among those that ask. A target whose laws take more than that leaves gets what is drafted already, perhaps nothing,
until time has made up for it.

    two targets of one weight: a is greedy, and drawing for b takes 40 ms in each draft step of 10 ms
    without the rule    20 draft steps a second, each for both
    with it             some 60 draft steps a second for a, some 12 of which are for b, too
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from starspec.ids import LinkId

BURST_S: Final = 0.05  # that may be owed, so that a long draft step now and then costs nobody a draft
WEIGHT: Final = 0.1  # of the newest draft step, in what laws of a target usually take


class LawfulTarget(NamedTuple):
    """A target that asks for drafts."""

    weight: float
    law_s: float  # what its laws usually take of a draft step


def law_share(
    own: LinkId, asking: Mapping[LinkId, LawfulTarget], law_s: float, step_s: float, shared_s: float
) -> float:
    """The share of the time that laws of a target may take, so that each other target can bear it.

    Args:
        asking: all targets that ask, this one too.
        law_s: what its laws took of a draft step.
        step_s: of that draft step.
        shared_s: what is left of it without anybody's laws.
    Returns: its part of the hub by weight, at least; 1 = no other target asks.
    """
    others = [each for link_id, each in asking.items() if link_id != own]
    if not others:
        return 1.0
    all_weights = sum(each.weight for each in asking.values())
    longest_s = min(all_weights / each.weight * (shared_s + each.law_s) for each in others)
    left = 1.0 - (step_s - law_s) / longest_s if longest_s > 0.0 else 0.0
    return max(asking[own].weight / all_weights, left)


class LawTurns:
    """What the laws of one target have taken."""

    def __init__(self) -> None:
        self._paid_s = -math.inf  # when its share will have made up for that

    def spend(self, seconds: float, share: float, now: float) -> None:
        """Laws of this target took so long, in a draft step that ends now.

        Args:
            share: of the time that they may take.
        """
        self._paid_s = max(self._paid_s, now - seconds) + seconds / share

    def must_wait(self, now: float) -> bool:
        """Whether they have taken more than that."""
        return self._paid_s > now + BURST_S
