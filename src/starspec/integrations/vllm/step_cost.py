"""What a vLLM step costs by its tokens, learnt while serving.

A step over few tokens takes as long as reading the weights; over more, as long as computing. Where one turns into the
other depends on machine, model and context, so nothing is assumed but that fewer never take longer: a size counts as
no dearer than any larger one, so one that was measured while the machine was busy misleads about no smaller one. What
is larger or smaller than all sizes measured is thought cheap, so that it is tried.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from starspec.policy.estimators import DecayedMean

WEIGHT: Final = 0.1  # of a new measurement, once there are many
MAX_RATIO: Final = 2.0  # of a measurement to what was known: one interrupted step says little
FEW: Final = 3  # measurements, of which the shortest counts: the first steps of a server take longer
NUM_STEPS: Final = 2048  # a size unmeasured for so many is forgotten, and tried anew: what it costs may have changed


class StepCost:
    """Seconds by size."""

    def __init__(self) -> None:
        self._by_size: dict[int, _Seconds] = {}
        self._step = 0

    def __bool__(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._by_size)

    def covers(self, size: int) -> bool:
        """Whether sizes were measured that are no larger and no smaller: of others only the least is known."""
        return bool(self._by_size) and min(self._by_size) <= _rounded(size) <= max(self._by_size)

    def is_known(self, size: int, num_steps: int) -> bool:
        """Whether this very size was measured a FEW times, and not more than so many steps ago."""
        mean = self._by_size.get(_rounded(size))
        return mean is not None and mean.count >= FEW and mean.noted_in >= self._step - num_steps

    def note(self, size: int, seconds: float) -> None:
        """Something of this size, at least 1, took so long in this step."""
        mean = self._by_size.setdefault(_rounded(size), _Seconds())
        mean.add(seconds)
        mean.noted_in = self._step

    def end_step(self) -> None:
        """Whether or not anything was noted in it."""
        self._step += 1
        last = self._step - NUM_STEPS
        self._by_size = {size: mean for size, mean in self._by_size.items() if mean.noted_in >= last}

    def predict(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of each size [N], at least 1, expected ones too; what has been measured must not be empty.

        Between two measured sizes on the line between them; above the largest as that one, and below the smallest in
        proportion to it, both the least that it can be.
        """
        measured = sorted(self._by_size)
        seconds = np.array([self._by_size[size].value for size in measured])
        least = np.minimum.accumulate(seconds[::-1])[::-1]
        hopeful = np.interp(sizes, measured, least)
        return np.asarray(hopeful * np.minimum(1.0, sizes / measured[0]))


class _Seconds(DecayedMean):
    """Of one size."""

    def __init__(self) -> None:
        super().__init__(WEIGHT, smallest_of=FEW, max_ratio=MAX_RATIO)
        self.noted_in = 0  # step


def _rounded(size: int) -> int:
    """Sizes above 32 share sixteen places between two powers of two: what is told apart stays few."""
    place = 1 << max(0, size.bit_length() - 5)
    return size - size % place
