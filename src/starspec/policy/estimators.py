"""Running estimates of what is measured again and again: the newest measurements count most.

Every policy that learns a cost or a rate keeps it in one of these classes. They hold numbers only: no clock and no I/O.

    DecayedMean     one quantity: seconds of a wait, tokens of an answer
    DecayedRatio    events in trials: accepted tokens in verified ones
    DecayedLine     a cost that grows with a size: seconds of a draft step by its sequences
    WindowMedian    one quantity with outliers: seconds of a forward on a shared machine
    WindowRate      events a second: tokens that a target emits
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median


class DecayedMean:
    """Exponentially weighted mean. Until `1 / weight` values were added, all of them weigh the same.

    Args:
        weight: weight of the newest value, 0 to 1.
        prior: what the mean is before the first value. It counts as `1 / weight` values. None = nothing is known, and
            the first value counts in full.
        smallest_of: of this many first values, the smallest counts. For durations whose first ones are too long.
        max_ratio: a value counts as at most this many times the mean. For durations that may be interrupted.
    """

    def __init__(
        self, weight: float, prior: float | None = None, *, smallest_of: int = 1, max_ratio: float = inf
    ) -> None:
        self.value = 0.0 if prior is None else prior  # 0 before the first value
        self.count = 0  # values added
        self._weight = weight
        self._num_prior = 0.0 if prior is None else 1.0 / weight
        self._smallest_of = smallest_of
        self._max_ratio = max_ratio

    def add(self, value: float) -> None:
        """Take in the newest value."""
        self.count += 1
        if self._num_prior == 0.0 and self.count <= self._smallest_of:
            self.value = value if self.count == 1 else min(self.value, value)
            return
        weight = max(self._weight, 1.0 / (self._num_prior + self.count))
        self.value += weight * (min(value, self._max_ratio * self.value) - self.value)


class DecayedRatio:
    """Events in trials, where each `add` lets all trials before it count `fade` times as much.

    Args:
        fade: 0 to 1.
        prior: the ratio before the first trial.
        num_prior: trials that the prior counts as.
    """

    def __init__(self, fade: float, prior: float = 0.0, num_prior: float = 0.0) -> None:
        self._fade = fade
        self._num_trials = num_prior
        self._num_events = prior * num_prior

    def add(self, num_events: float, num_trials: float) -> None:
        """Take in the newest trials. Either number may be a sum of seconds or tokens; both are at least 0."""
        self._num_trials = self._fade * self._num_trials + num_trials
        self._num_events = self._fade * self._num_events + num_events

    @property
    def num_trials(self) -> float:
        """Trials, as they count now."""
        return self._num_trials

    @property
    def value(self) -> float:
        """Events per trial; 0 while there is no trial."""
        return self._num_events / self._num_trials if self._num_trials else 0.0

    def shrunk(self, ratio: float, num_trials: float) -> float:
        """As `value`, with so many more trials of this ratio, which do not fade."""
        return (self._num_events + ratio * num_trials) / (self._num_trials + num_trials)


class DecayedLine:
    """Least-squares line y(x), where each `add` lets all points before it count `fade` times as much."""

    def __init__(self, fade: float) -> None:
        self._fade = fade
        self._num = self._x = self._y = self._xx = self._xy = 0.0  # weighted sums: points, x, y, x * x, x * y

    def add(self, x: float, y: float) -> None:
        """Take in the newest point."""
        self._num = self._fade * self._num + 1.0
        self._x = self._fade * self._x + x
        self._y = self._fade * self._y + y
        self._xx = self._fade * self._xx + x * x
        self._xy = self._fade * self._xy + x * y

    @property
    def mean(self) -> tuple[float, float]:
        """Weighted mean of x and of y. The line goes through it. (0, 0) before the first point."""
        return (self._x / self._num, self._y / self._num) if self._num else (0.0, 0.0)

    @property
    def variance(self) -> float:
        """Weighted variance of x. A line through points of nearly one x has no slope to be trusted."""
        return self._xx / self._num - self.mean[0] ** 2 if self._num else 0.0

    @property
    def slope(self) -> float:
        """Raises: ZeroDivisionError if `variance` is 0."""
        x, y = self.mean
        return (self._xy / self._num - x * y) / self.variance


class WindowMedian:
    """Median of the last `size` values: one slow moment does not change it.

    Args:
        min_count: values without which it is unknown.
        max_age_s: values of this age are forgotten with the next `add`.
    """

    def __init__(self, size: int, min_count: int = 1, max_age_s: float = inf) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._times_s: deque[float] = deque(maxlen=size)
        self._min_count = min_count
        self._max_age_s = max_age_s

    def add(self, value: float, now: float = 0.0) -> None:
        """Take in the newest value, and forget the oldest. Args: now: needed with a `max_age_s` only."""
        while self._times_s and now - self._times_s[0] >= self._max_age_s:
            self._values.popleft()
            self._times_s.popleft()
        self._values.append(value)
        self._times_s.append(now)

    def num_young(self, now: float) -> int:
        """Values that are younger than `max_age_s`."""
        return sum(now - each < self._max_age_s for each in self._times_s)

    @property
    def value(self) -> float | None:
        """None while it is unknown."""
        return median(self._values) if len(self._values) >= self._min_count else None


class WindowRate:
    """Events a second, over the last seconds.

    Args:
        window_s: so many.
        started_s: the time now. Until `window_s` have passed, the rate is that since then.
    """

    def __init__(self, window_s: float, started_s: float) -> None:
        self._window_s = window_s
        self._started_s = started_s
        self._counts: deque[tuple[float, int]] = deque()  # (time, events) of the window
        self._sum = 0  # of these events

    def add(self, num_events: int, now: float) -> None:
        """So many events have happened just now."""
        self._counts.append((now, num_events))
        self._sum += num_events

    def value(self, now: float) -> float:
        """The rate. Later calls may only ask about the same time or a later one."""
        while self._counts and self._counts[0][0] < now - self._window_s:
            self._sum -= self._counts.popleft()[1]
        known_s = min(self._window_s, now - self._started_s)
        return self._sum / known_s if known_s > 0 else 0.0
