"""How many launches a pipe of stages should have in flight.

While a round travels, each stage computes for a small part of the time. Rounds of other sequences fill the rest:

    one in flight     link ---- stage ---- link ---- stage ---- link ----> the next one
    three             link ---- stage ---- link ---- stage ---- link ---->
                           link ---- stage ---- link ---- stage ---- link ---->
                                link ---- stage ---- link ---- stage ---- link ---->

With more than traversal / slowest stage, rounds would only wait in front of that stage.
"""

from __future__ import annotations

from typing import Final

from starspec.policy.estimators import DecayedMean

MAX_DEPTH: Final = 4  # each round has its share of the sequences, and drafts for few cost a hub as much as for many
WEIGHT: Final = 0.1  # of the newest traversal in means


class PipeDepth:
    """Measured from traversals.

    Args:
        num_stages: of the pipe. They are thought to be equally slow: the answers tell only what all take together.
        fixed: the operator's own depth; None = follows traversals.
    """

    def __init__(self, num_stages: int, fixed: int | None = None) -> None:
        self._num_stages = num_stages
        self._fixed = fixed
        self._links_s, self._compute_s = DecayedMean(WEIGHT), DecayedMean(WEIGHT)

    @property
    def value(self) -> int:
        """Launches in flight; 1 before anything is measured."""
        if self._fixed is not None:
            return self._fixed
        if not self._compute_s.value:
            return 1
        fitting = self._num_stages * (1.0 + self._links_s.value / self._compute_s.value)
        return max(1, min(MAX_DEPTH, int(fitting)))

    def add(self, traversal_s: float, compute_s: float) -> None:
        """A launch has landed. Args: compute_s: of all stages together, within the traversal."""
        self._links_s.add(max(0.0, traversal_s - compute_s))
        self._compute_s.add(compute_s)
