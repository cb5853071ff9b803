"""What a step of the target costs by its tokens, learnt while serving.

A step over few tokens takes as long as reading the weights; a step over many tokens takes as long as computing. Where
one turns into the other depends on machine, model and context. So only one thing is assumed: fewer tokens never take
longer. Sizes that were measured otherwise are given their common mean (isotonic regression). To take the least of them
instead would make all drafts look cheap on a machine whose steps vary. A size that is smaller or larger than all
measured ones is on the line through the smallest and the largest; but a smaller one takes its share of the smallest at
least. While there is only one, a larger size is taken to cost no more, so that it is tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starspec.policy.estimators import DecayedMean

WEIGHT: Final = 0.1  # of a new measurement, once there are many
MAX_RATIO: Final = 1.25  # of a measurement to what was known: one interrupted step says little
NUM_WEIGHED: Final = 10  # measurements of a size that count, at most: the mean is of no more
FEW: Final = 3  # measurements, of which the shortest counts: the first steps of a server take longer
NUM_STEPS: Final = 2048  # a size unmeasured for so many is forgotten, and tried again: its cost may have changed


class _Seconds(DecayedMean):
    """Seconds of steps of one size."""

    def __init__(self) -> None:
        super().__init__(WEIGHT, smallest_of=FEW, max_ratio=MAX_RATIO)
        self.last_step = 0  # when it was measured last


class _Curve(NamedTuple):
    measured: NDArray[np.float64]  # sizes, in order
    fitted: NDArray[np.float64]  # seconds of each, at most those of any larger one
    below_s: float  # that each token less than the smallest size saves
    above_s: float  # that each token more than the largest size takes


class StepCost:
    """Seconds by size, where a size is a number of tokens, at least 1."""

    def __init__(self) -> None:
        self._by_size: dict[int, _Seconds] = {}
        self._curve: _Curve | None = None  # None = not computed
        self._step = 0

    def __bool__(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._by_size)

    @property
    def largest(self) -> int:
        """The largest measured size; 0 before the first."""
        return max(self._by_size, default=0)

    def covers(self, size: int) -> bool:
        """Whether the size lies between two measured sizes, or is one: others are only thought to be on a line."""
        return bool(self._by_size) and min(self._by_size) <= _rounded(size) <= max(self._by_size)

    def is_known(self, size: int, num_steps: int) -> bool:
        """Whether this very size was measured FEW times or more, and not more than `num_steps` steps ago."""
        seconds = self._by_size.get(_rounded(size))
        return seconds is not None and seconds.count >= FEW and seconds.last_step >= self._step - num_steps

    def add(self, size: int, seconds: float) -> None:
        """A step of this size took so long."""
        known = self._by_size.setdefault(_rounded(size), _Seconds())
        known.add(seconds)
        known.last_step = self._step
        self._curve = None

    def end_step(self) -> None:
        """Call once for each step, whether or not it was measured."""
        self._step += 1
        oldest = self._step - NUM_STEPS
        forgotten = [size for size, known in self._by_size.items() if known.last_step < oldest]
        for size in forgotten:
            del self._by_size[size]
        if forgotten:
            self._curve = None

    def predict(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of each size [N], which may be an expected number. Something must have been measured.

        A size between two measured sizes is on the line between them. A larger one is on the line through smallest and
        largest; so is a smaller one, unless it would be below its share of the smallest. If there is only one, a larger
        size costs as much, and a smaller one its share: both are lower bounds.
        """
        measured, fitted, below_s, above_s = self._fitted()
        outside_s = above_s * np.maximum(0.0, sizes - measured[-1]) - below_s * np.maximum(0.0, measured[0] - sizes)
        return np.asarray(np.interp(sizes, measured, fitted) + outside_s)

    def seconds(self, size: float) -> float:
        """As `predict`, of one size. This is much quicker for a single one."""
        measured, fitted, below_s, above_s = self._fitted()
        above = bisect_left(measured, size)
        if above == 0:
            return float(fitted[0] - below_s * (measured[0] - size))
        if above == len(measured):
            return float(fitted[-1] + above_s * (size - measured[-1]))
        share = (size - measured[above - 1]) / (measured[above] - measured[above - 1])
        return float(fitted[above - 1] + share * (fitted[above] - fitted[above - 1]))

    def at_most(self, size: float) -> float:
        """Seconds of a size, at most: those above the largest measured one are taken to cost in proportion to it."""
        seconds, largest = self.seconds(size), self.largest
        return seconds if size <= largest else max(seconds, self.seconds(largest) * size / largest)

    def hopeful(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """As `predict`, but a size that was never measured costs as little as the next smaller one that was.

        Up to a knee, more tokens cost nothing. Where the knee is, no line between two sizes tells.
        """
        measured, fitted, _, _ = self._fitted()
        predicted, whole = self.predict(sizes), np.rint(sizes)
        below = np.clip(np.searchsorted(measured, whole, side="right") - 1, 0, None)
        return np.where(np.isin(whole, measured), predicted, np.minimum(fitted[below], predicted))

    def _fitted(self) -> _Curve:
        if self._curve is None:
            sizes = sorted(self._by_size)
            measured, fitted = np.array(sizes, float), _isotonic([self._by_size[size] for size in sizes])
            below_s, above_s = float(fitted[0] / measured[0]), 0.0
            if len(measured) > 1:
                above_s = float((fitted[-1] - fitted[0]) / (measured[-1] - measured[0]))
                below_s = min(below_s, above_s)
            self._curve = _Curve(measured, fitted, below_s, above_s)
        return self._curve


def _isotonic(measured: Sequence[_Seconds]) -> NDArray[np.float64]:
    """The seconds that never fall and are closest to these: weighted least squares, by pooling adjacent violators."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, sizes
    for each in measured:
        mean, weight, num = each.value, float(min(each.count, NUM_WEIGHED)), 1
        while pools and pools[-1][0] > mean:
            before, weight_before, num_before = pools.pop()
            mean = (mean * weight + before * weight_before) / (weight + weight_before)
            weight, num = weight + weight_before, num + num_before
        pools.append((mean, weight, num))
    return np.repeat([mean for mean, _, _ in pools], [num for _, _, num in pools])


def _rounded(size: int) -> int:
    """Sizes above 32 are grouped, sixteen groups between two powers of two, so that few are told apart."""
    group = 1 << max(0, size.bit_length() - 5)
    return size - size % group
