"""What a wait for proposals costs, learnt from the last rounds: `fixed + steps * per step + tokens * per token`.

The fixed part is the way there and back, and what hub and target do once. A draft step is one forward of the hub for
all sequences whose drafts are that deep: most of the cost on a GPU, where sequences share the weights. A token is what
one more sequence in a draft step adds: much of the cost on a CPU.

After rounds without drafts, a hub prefills what was committed meanwhile. These tokens have a cost of their own, so that
one draft after a long pause does not say that drafting is expensive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starspec.policy.deadline import Round
from starspec.speculation.budget import MAX_FORWARDED

NUM_ROUNDS: Final = 48
FADE: Final = 0.95  # weight of a round, one round later
CHANGED_FADE: Final = 0.5  # the same where two rounds in a row were not at all as expected
IDLE_FADE: Final = 0.98  # of all rounds, for each step without one: what was long ago may have changed
# Of a round to what was expected of it, if the one before was as expected. One interrupted round says little; two in a
# row show that rounds take longer now.
MAX_RATIO: Final = 2.0
FEW: Final = 3  # rounds, before which nothing is expected: too little is known
MIN_WEIGHT: Final = 0.05  # of a round that shows how wide draft steps were; the newest round has 1
SPARING: Final = 0.1  # weight of "no cost fixed or by tokens": where rounds do not tell the parts apart, steps cost


class RoundCost(NamedTuple):
    """Seconds, none of them negative.

    While only one depth was measured, deeper draft steps are assumed to be free, so that they are tried. `at_most` is
    what trying them may cost.
    """

    fixed_s: float
    step_s: float
    token_s: float
    deepest: int
    caught_up_s: float = 0.0  # of each token that the hub prefills first, after rounds without drafts
    widest: float = inf  # tokens of a draft step, at most, as far as measured
    num_paid: float = inf  # draft steps that are not free

    def seconds(self, num_steps: float | NDArray[np.float64], num_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cost of rounds with so many draft steps, at least 1, and tokens. Both may be expected numbers."""
        return np.asarray(self.fixed_s + self.step_s * np.minimum(num_steps, self.num_paid) + self.token_s * num_tokens)

    def at_most(self, num_steps: float, num_tokens: float) -> float:
        """As `seconds`, but no steps are free, and those that are wider than the widest one cost in proportion: from
        rounds of one sequence it is not known what steps share."""
        growth = max(1.0, num_tokens / (num_steps * self.widest))
        return self.fixed_s + self.step_s * num_steps * growth + self.token_s * num_tokens

    def at_most_of(self, lengths: Sequence[int], num_caught_up: int = 0) -> float:
        """As `seconds_of`, with `at_most`."""
        return self.at_most(max(lengths), sum(lengths)) + self.caught_up_s * num_caught_up

    def seconds_of(self, lengths: Sequence[int], num_caught_up: int = 0) -> float:
        """Cost of a round with drafts of such lengths, at least one of which is not 0. Args: as Round."""
        return float(self.seconds(max(lengths), np.array(float(sum(lengths))))) + self.caught_up_s * num_caught_up


NO_WAIT: Final = RoundCost(0.0, 0.0, 0.0, deepest=0)
FREE: Final = RoundCost(0.0, 0.0, 0.0, deepest=MAX_FORWARDED)  # of drafts that nobody waits for


class RoundTimes:
    """Fits a cost to the last rounds. This is not a `DecayedLine`: it has two slopes, and no part may be negative.

    Args:
        cost: before the first round; by default none, so that it is tried.
    """

    def __init__(self, cost: RoundCost = NO_WAIT) -> None:
        self._rounds: deque[Round] = deque(maxlen=NUM_ROUNDS)
        self._weights: deque[float] = deque(maxlen=NUM_ROUNDS)
        self._num_steps = 0  # since the last round
        self._last_ratio = 1.0  # of the last round to what was expected of it
        self.cost = cost

    def add(self, round_: Round) -> None:
        """Take in the newest round."""
        has_changed = False
        if len(self._rounds) >= FEW:
            expected_s = self.cost.at_most_of(round_.lengths, round_.num_caught_up)
            before, self._last_ratio = self._last_ratio, round_.seconds / expected_s if expected_s else 1.0
            round_ = round_._replace(seconds=min(round_.seconds, MAX_RATIO * expected_s * max(1.0, before)))
            has_changed = min(before, self._last_ratio) > MAX_RATIO or max(before, self._last_ratio) < 1.0 / MAX_RATIO
        fade = (CHANGED_FADE if has_changed else FADE) * IDLE_FADE ** max(0, self._num_steps - 1)
        self._weights = deque([*(fade * each for each in self._weights), 1.0], NUM_ROUNDS)
        self._rounds.append(round_)
        self._num_steps = 0
        self.cost = _fit(self._rounds, self._weights)

    def end_step(self) -> None:
        """Call once for each step of the target, with or without a round."""
        self._num_steps += 1


def _fit(rounds: Sequence[Round], round_weights: Sequence[float]) -> RoundCost:
    """Weighted least squares. A part that would be negative is left out, and the others are fitted again."""
    weights = np.sqrt(round_weights)
    parts = np.array([(1.0, max(lengths), sum(lengths), caught_up) for lengths, _, caught_up in rounds])
    parts *= weights[:, None]
    seconds = np.array([each.seconds for each in rounds]) * weights
    parts = np.vstack([parts, (SPARING, 0.0, 0.0, 0.0), (0.0, 0.0, SPARING, 0.0)])
    seconds = np.append(seconds, (0.0, 0.0))
    kept = [0, 1, 2, 3]
    while True:
        fitted = np.linalg.lstsq(parts[:, kept], seconds)[0]
        if fitted.min() >= 0.0 or len(kept) == 1:
            cost = np.zeros(len(parts[0]))
            cost[kept] = np.maximum(0.0, fitted)
            fixed_s, step_s, token_s, caught_up_s = cost.tolist()
            depths = {max(each.lengths) for each in rounds}
            num_paid = inf if len(depths) > 1 else max(depths)
            pairs = zip(rounds, round_weights, strict=True)
            widest = max(sum(each.lengths) / max(each.lengths) for each, weight in pairs if weight >= MIN_WEIGHT)
            return RoundCost(fixed_s, step_s, token_s, max(depths), caught_up_s, widest, num_paid)
        del kept[int(np.argmin(fitted))]
