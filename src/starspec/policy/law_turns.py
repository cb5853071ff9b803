"""How much of a draft server's time the laws of one target's requests may take while other targets ask for drafts.

A draft step forwards sequences of all targets, then draws the children of each node by the law of its request:
temperature, penalties, biases. Most laws take some tenths of a millisecond for a node. One with penalties and a
thousand biases takes some milliseconds, and a tree may have sixteen nodes of one depth. `step_shares.py` counts
sequences and tokens, and does not see this. The rule: laws of a target take its share of the time at most, by weight. A
target that is ahead of that gets what is drafted already, perhaps nothing, until time has made up for it.

    two targets of one weight: a is greedy, and drawing for b takes 40 ms in each draft step of 10 ms
    without the rule    20 draft steps a second, each for both
    with it             some 60 draft steps a second for a, some 12 of which are for b, too
"""

from __future__ import annotations

import math
from typing import Final

BURST_S: Final = 0.05  # that may be owed, so that a long draft step now and then costs nobody a draft


class LawTurns:
    """What the laws of one target have taken."""

    def __init__(self) -> None:
        self._paid_s = -math.inf  # when its share will have made up for that

    def spend(self, seconds: float, share: float, now: float) -> None:
        """Laws of this target took so long, in a draft step that ends now.

        Args:
            share: of the time that is the target's; 1 = no other target asks.
        """
        self._paid_s = max(self._paid_s, now - seconds) + seconds / share

    def must_wait(self, now: float) -> bool:
        """Whether the target has had more than its share."""
        return self._paid_s > now + BURST_S
