"""What a wait for proposals costs, learnt from the last rounds: `fixed + steps * per step + tokens * per token`.

The fixed part is the way there and back, and what hub and target do once. A draft step is one forward of the hub for
all sequences whose drafts are that deep: most of the cost on a GPU, where sequences share the weights. A token is what
one more sequence in a draft step adds: much of the cost on a CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starspec.policy.deadline import Round

NUM_ROUNDS: Final = 48
FADE: Final = 0.95  # weight of a round, one round later
MAX_RATIO: Final = 2.0  # of a round to what was expected of it: one interrupted round says little
FEW: Final = 3  # rounds, before which nothing is expected: too little is known
SPARING: Final = 0.1  # weight of "no cost fixed or by tokens": where rounds do not tell the parts apart, steps cost


class RoundCost(NamedTuple):
    """Seconds, none of them negative.

    Draft steps beyond the deepest measured one are assumed to be free, so that they are tried.
    """

    fixed_s: float
    step_s: float
    token_s: float
    deepest: int

    def seconds(self, num_steps: float | NDArray[np.float64], num_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cost of rounds with so many draft steps, at least 1, and tokens. Both may be expected numbers."""
        return np.asarray(self.fixed_s + self.step_s * np.minimum(num_steps, self.deepest) + self.token_s * num_tokens)

    def seconds_of(self, lengths: Sequence[int]) -> float:
        """Cost of a round with drafts of such lengths, at least one of which is not 0."""
        return float(self.seconds(max(lengths), np.array(float(sum(lengths)))))


NO_WAIT: Final = RoundCost(0.0, 0.0, 0.0, deepest=0)


class RoundTimes:
    """Fits a cost to the last rounds. This is not a `DecayedLine`: it has two slopes, and no part may be negative."""

    def __init__(self) -> None:
        self._rounds: deque[Round] = deque(maxlen=NUM_ROUNDS)
        self.cost = NO_WAIT  # before the first round: it has to be tried

    def add(self, round_: Round) -> None:
        """Take in the newest round."""
        if len(self._rounds) >= FEW:
            round_ = round_._replace(seconds=min(round_.seconds, MAX_RATIO * self.cost.seconds_of(round_.lengths)))
        self._rounds.append(round_)
        self.cost = _fit(self._rounds)


def _fit(rounds: Sequence[Round]) -> RoundCost:
    """Weighted least squares. A part that would be negative is left out, and the others are fitted again."""
    weights = np.sqrt(FADE ** np.arange(len(rounds))[::-1])
    parts = np.array([(1.0, max(lengths), sum(lengths)) for lengths, _ in rounds]) * weights[:, None]
    seconds = np.array([each.seconds for each in rounds]) * weights
    parts = np.vstack([parts, (SPARING, 0.0, 0.0), (0.0, 0.0, SPARING)])
    seconds = np.append(seconds, (0.0, 0.0))
    kept = [0, 1, 2]
    while True:
        fitted = np.linalg.lstsq(parts[:, kept], seconds)[0]
        if fitted.min() >= 0.0 or len(kept) == 1:
            cost = np.zeros(3)
            cost[kept] = np.maximum(0.0, fitted)
            fixed_s, step_s, token_s = cost.tolist()
            return RoundCost(fixed_s, step_s, token_s, deepest=max(max(each.lengths) for each in rounds))
        del kept[int(np.argmin(fitted))]
