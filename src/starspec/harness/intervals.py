"""95% intervals: of a share, of a mean, and of a ratio that was measured several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Final

LEVEL: Final = 0.95
QUANTILE: Final = (1 + LEVEL) / 2
Z: Final = NormalDist().inv_cdf(QUANTILE)  # 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value with its 95% interval."""

    value: float
    low: float  # both are infinite, or 0 and infinite, if one measurement is all there is
    high: float

    def __format__(self, form: str) -> str:
        """As 1.12 (1.05 to 1.20), each number in that form."""
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"

    def overlaps(self, other: Estimate) -> bool:
        """Whether the intervals have a point in common."""
        return self.low <= other.high and other.low <= self.high

    def times(self, factor: float) -> Estimate:
        """In another unit. Args: factor: above 0."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def rounded(self, digits: int) -> Estimate:
        return Estimate(round(self.value, digits), round(self.low, digits), round(self.high, digits))


def share_of(num_hits: int, num_all: int) -> Estimate:
    """A share of independent trials, with Wilson's score interval. Needs one trial.

    It stays within 0 and 1, and does not shrink to a point where all trials end alike.
    """
    share, weight = num_hits / num_all, Z * Z / num_all
    centre = (share + weight / 2) / (1 + weight)
    half = Z * math.sqrt(share * (1 - share) / num_all + weight / (4 * num_all)) / (1 + weight)
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Estimate(share, low if num_hits else 0.0, high if num_hits < num_all else 1.0)


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of independent values, with Student's interval. Needs one value, which alone says nothing certain."""
    centre = fmean(values)
    if len(values) == 1:
        return Estimate(centre, -math.inf, math.inf)
    half = student_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(centre, centre - half, centre + half)


def mean_ratio(ratios: Sequence[float]) -> Estimate:
    """The geometric mean of ratios: `mean_of` their logarithms.

    Args:
        ratios: above 0, independent of each other, at least one. Each compares two things that were measured on the
            same work, so that differences between pieces of work cancel.
    """
    logs = mean_of([math.log(each) for each in ratios])
    return Estimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))


def student_quantile(freedom: int) -> float:
    """How many standard errors a two-sided 95% interval reaches to each side.

    Exact for 1 and 2 degrees of freedom, else Cornish and Fisher's expansion: at most 0.2% too small.
    """
    if freedom == 1:
        return math.tan(math.pi * (QUANTILE - 0.5))
    if freedom == 2:
        return LEVEL / math.sqrt(2 * QUANTILE * (1 - QUANTILE))
    terms = (
        Z,
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))
