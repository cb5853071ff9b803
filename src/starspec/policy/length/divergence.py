"""How far a draft disagrees with its target, and whether that changes: the signals of DSDE (section III-A).

The signal is the Kullback-Leibler divergence KLD(target || draft) of the next token, in nats, at each position that the
target verified. It is known only after verification, so it says something about the next round, not about this one.

Where the paper leaves something open, docs/lengths.md says what is done here, and why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import exp
from typing import Final, NamedTuple

CALIBRATION_ROUNDS: Final = 4  # rounds with drafts, before the longest length is known
SHORT_WINDOW: Final = 10  # verified positions
LONG_WINDOW: Final = 30
DECAY: Final = 0.85  # weight of a position, one position later (equation 5)
MAX_KLD: Final = 20.0  # nats: a token that the draft excludes would make it infinite
EPSILON: Final = 1e-6


class Calibration(NamedTuple):
    """What the first rounds of a sequence have shown."""

    num_accepted: int  # draft tokens of the round with the most accepted ones
    mean_kld: float
    largest_kld: float

    @property
    def max_length(self) -> float:
        """SL_max: the longest draft that seems useful (equation 1)."""
        return self.num_accepted * (1.0 + self.mean_kld / (self.largest_kld + EPSILON))


class DivergenceHistory:
    """The divergences of one sequence, from round to round."""

    def __init__(self) -> None:
        self.calibration: Calibration | None = None  # None = still calibrating
        self.last_mean = 0.0  # of the last round with a draft
        self._newest_first: deque[float] = deque(maxlen=LONG_WINDOW)
        self._num_rounds = self._num_accepted = self._num_klds = 0
        self._sum = self._largest = 0.0

    def add_round(self, klds: Sequence[float], num_accepted: int) -> None:
        """A draft was verified.

        Args:
            klds: at each verified position in order, up to the first rejected token; empty = the hub sent no signals.
            num_accepted: draft tokens.
        """
        if not klds:
            return
        klds = [min(max(0.0, each), MAX_KLD) for each in klds]
        self._newest_first.extendleft(klds)
        self.last_mean = sum(klds) / len(klds)
        if self.calibration is not None:
            return
        self._num_rounds += 1
        self._num_accepted = max(self._num_accepted, num_accepted)
        self._num_klds += len(klds)
        self._sum += sum(klds)
        self._largest = max(self._largest, *klds)
        if self._num_rounds == CALIBRATION_ROUNDS:
            self.calibration = Calibration(self._num_accepted, self._sum / self._num_klds, self._largest)

    @property
    def scale_factor(self) -> float:
        """SF: how much the last round counts against long drafts (equation 3)."""
        return exp(2.0 * self.last_mean) - 1.0

    @property
    def variance_ratio(self) -> float:
        """WVIR: variance of the last few divergences by that of more of them; above 1 = less stable (equation 4).

        1 where the long window does not vary at all: nothing then shows that it became less stable.
        """
        long = weighted_variance(self._newest_first)
        return weighted_variance(islice(self._newest_first, SHORT_WINDOW)) / long if long > EPSILON**2 else 1.0


def weighted_variance(newest_first: Iterable[float]) -> float:
    """Variance of values that weigh DECAY times as much for each newer one (equations 5 to 7); 0 of none."""
    values = list(newest_first)
    weights = [DECAY**index for index in range(len(values))]
    total = sum(weights)
    if not total:
        return 0.0
    mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    return sum(weight * (value - mean) ** 2 for weight, value in zip(weights, values, strict=True)) / total
