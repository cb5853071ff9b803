"""Each running estimate against the formula that it stands for."""

from __future__ import annotations

from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.estimators import DecayedLine, DecayedMean, DecayedRatio, WindowMedian, WindowRate
from starspec.stats import SMOOTHING, Mean

values = st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=60)
rates = st.floats(0.05, 1.0)


def mean_of(seen: list[float], mean: DecayedMean) -> float:
    for each in seen:
        mean.add(each)
    return mean.value


@given(values, rates)
def test_a_mean_lies_within_its_values(seen: list[float], weight: float) -> None:
    mean = DecayedMean(weight)
    assert min(seen) - 1e-9 <= mean_of(seen, mean) <= max(seen) + 1e-9
    assert mean.count == len(seen)


@given(values)
def test_the_first_values_of_a_mean_weigh_the_same(seen: list[float]) -> None:
    assert mean_of(seen[:10], DecayedMean(0.1)) == pytest.approx(fmean(seen[:10]))


@given(values)
def test_statistics_and_policies_mean_the_same(seen: list[float]) -> None:
    statistic = Mean()
    for each in seen:
        statistic.add(each)
    assert mean_of(seen, DecayedMean(SMOOTHING)) == pytest.approx(statistic.value)


@given(values, st.floats(0.001, 1000.0), rates)
def test_after_a_prior_each_value_has_its_weight(seen: list[float], prior: float, weight: float) -> None:
    expected = prior
    for each in seen:
        expected = (1.0 - weight) * expected + weight * each
    assert mean_of(seen, DecayedMean(weight, prior)) == pytest.approx(expected)


@given(values, rates)
def test_of_the_first_values_the_smallest_counts(seen: list[float], weight: float) -> None:
    assert mean_of(seen[:3], DecayedMean(weight, smallest_of=3)) == min(seen[:3])


@given(values, st.floats(1.0, 1e9))
def test_an_interrupted_measurement_moves_a_mean_no_further_than_its_bound(seen: list[float], last: float) -> None:
    mean = DecayedMean(0.1, max_ratio=2.0)
    before = mean_of([*seen] * 10, mean)
    mean.add(last)
    assert mean.value <= 1.1 * before + 1e-9


def test_a_mean_of_nothing_is_its_prior() -> None:
    assert DecayedMean(0.1).value == 0.0
    assert DecayedMean(0.1, 7.0).value == 7.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40), rates, st.floats(0.0, 1.0), rates)
def test_a_ratio_is_the_quotient_of_faded_sums(
    seen: list[tuple[int, int]], fade: float, prior: float, num_prior: float
) -> None:
    ratio = DecayedRatio(fade, prior, num_prior)
    for num_events, more in seen:
        ratio.add(num_events, num_events + more)
    weights = [fade**age for age in range(len(seen), -1, -1)]
    events = [prior * num_prior, *(num_events for num_events, _ in seen)]
    trials = [num_prior, *(num_events + more for num_events, more in seen)]
    expected = sum(w * each for w, each in zip(weights, events, strict=True)) / sum(
        w * each for w, each in zip(weights, trials, strict=True)
    )
    assert ratio.value == pytest.approx(expected)
    assert 0.0 <= ratio.value <= 1.0 + 1e-9


def test_a_ratio_of_no_trials_is_zero() -> None:
    assert DecayedRatio(0.9).value == 0.0


@given(st.floats(-5.0, 5.0), st.floats(-5.0, 5.0), st.lists(st.integers(0, 50), min_size=2, max_size=40, unique=True))
def test_points_on_a_line_give_that_line(start: float, slope: float, xs: list[int]) -> None:
    line = DecayedLine(0.99)
    for x in xs:
        line.add(x, start + slope * x)
    x, y = line.mean
    assert line.slope == pytest.approx(slope, abs=1e-6)
    assert y - line.slope * x == pytest.approx(start, abs=1e-4)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), rates)
def test_a_line_knows_mean_and_variance_of_its_points(xs: list[int], fade: float) -> None:
    line = DecayedLine(fade)
    for x in xs:
        line.add(x, 2.0 * x)
    weights = [fade**age for age in range(len(xs) - 1, -1, -1)]
    mean = sum(w * x for w, x in zip(weights, xs, strict=True)) / sum(weights)
    variance = sum(w * (x - mean) ** 2 for w, x in zip(weights, xs, strict=True)) / sum(weights)
    assert line.mean == pytest.approx((mean, 2.0 * mean))
    assert line.variance == pytest.approx(variance, abs=1e-6)


def test_a_line_without_points_goes_through_nothing() -> None:
    line = DecayedLine(0.99)
    assert (line.mean, line.variance) == ((0.0, 0.0), 0.0)


def test_a_line_follows_what_changes() -> None:
    line = DecayedLine(0.9)
    for slope in (1.0, 3.0):
        for _ in range(100):
            line.add(1, slope)
            line.add(2, 2 * slope)
    assert line.slope == pytest.approx(3.0, rel=1e-3)


@given(values, st.integers(1, 9), st.integers(1, 9))
def test_a_window_has_the_median_of_its_last_values(seen: list[float], size: int, least: int) -> None:
    window = WindowMedian(size, min_count=least)
    for each in seen:
        window.add(each)
    assert window.value == (median(seen[-size:]) if min(size, len(seen)) >= least else None)


def test_a_window_of_nothing_knows_nothing() -> None:
    assert WindowMedian(5).value is None


def test_a_window_forgets_what_is_too_old_when_it_is_measured_anew() -> None:
    window = WindowMedian(5, 2, max_age_s=10.0)
    window.add(1.0, 0.0)
    window.add(3.0, 5.0)
    assert (window.value, window.num_young(9.9), window.num_young(10.0)) == (2.0, 2, 1)
    assert window.value == 2.0, "it is known until there are newer values"
    window.add(9.0, 10.0)
    assert window.value == 6.0
    window.add(7.0, 30.0)
    assert window.value is None


def test_a_rate_is_that_of_the_last_seconds_and_at_first_of_fewer() -> None:
    rate = WindowRate(5.0, 100.0)
    assert rate.value(100.0) == 0.0
    rate.add(6, 101.0)
    assert rate.value(102.0) == pytest.approx(3.0)
    rate.add(4, 104.0)
    assert rate.value(105.0) == pytest.approx(2.0)
    assert rate.value(106.5) == pytest.approx(0.8)
    assert rate.value(109.5) == 0.0
