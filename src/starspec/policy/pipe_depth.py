"""How many launches a pipe of stages should have in flight.

While a round travels, each stage computes for a small part of the time. Rounds of other sequences fill the rest:

    one in flight     link ---- stage ---- link ---- stage ---- link ----> the next one
    three             link ---- stage ---- link ---- stage ---- link ---->
                           link ---- stage ---- link ---- stage ---- link ---->
                                link ---- stage ---- link ---- stage ---- link ---->

When the slowest stage computes all the time, more rounds would only wait in front of it, and each would have fewer
sequences. How busy it is follows from Little's law: launches in flight * its time / the time of a traversal.
"""

from __future__ import annotations

from typing import Final

from starspec.policy.estimators import DecayedMean

MAX_DEPTH: Final = 4  # each round has its share of the sequences, and drafts for few cost a hub as much as for many
NUM_TRAVERSALS: Final = 8  # that are measured before the depth changes
FULL, OVERFULL = (
    0.95,
    0.98,
)  # share of the time in which the slowest stage should compute, and from which on less would do


class PipeDepth:
    """Follows traversals, one step at a time.

    Args:
        fixed: the operator's own depth; None = follows traversals.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self.value = fixed or 1  # launches in flight
        self._is_fixed = fixed is not None
        self._forget()

    def add(self, traversal_s: float, slowest_s: float) -> None:
        """A launch has landed. Args: slowest_s: of the stage that took longest, within the traversal."""
        self._traversal_s.add(traversal_s)
        self._slowest_s.add(slowest_s)
        if self._is_fixed or self._traversal_s.count < NUM_TRAVERSALS or not self._traversal_s.value:
            return
        share = self._slowest_s.value / self._traversal_s.value  # of the time, for each launch in flight
        if self.value > 1 and self.value * share > OVERFULL:
            self.value -= 1
            self._forget()
        elif self.value < MAX_DEPTH and (self.value + 1) * share <= FULL:
            self.value += 1
            self._forget()

    def _forget(self) -> None:
        """Traversals of another depth say nothing about this one."""
        self._traversal_s, self._slowest_s = DecayedMean(1 / NUM_TRAVERSALS), DecayedMean(1 / NUM_TRAVERSALS)
