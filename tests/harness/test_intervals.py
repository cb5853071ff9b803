"""Intervals: scipy's where it has them, and what one measurement says."""

import math

import pytest
from scipy.stats import binomtest, t, ttest_1samp

from starspec.harness.intervals import Estimate, mean_of, mean_ratio, share_of, student_quantile


@pytest.mark.parametrize(("num_hits", "num_all"), [(0, 40), (1, 40), (25, 40), (40, 40), (1, 1), (500, 1319)])
def test_a_shares_interval_is_wilsons(num_hits: int, num_all: int) -> None:
    expected = binomtest(num_hits, num_all).proportion_ci(method="wilson")
    found = share_of(num_hits, num_all)
    assert found.value == num_hits / num_all
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 19, 39, 200])
def test_students_quantile_is_right_to_a_five_hundredth(freedom: int) -> None:
    assert student_quantile(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=0.002)


def test_a_means_interval_is_students() -> None:
    values = [1.4, 2.2, 1.9, 1.7, 2.8, 2.1, 1.2, 2.0]
    expected = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (mean_of(values).low, mean_of(values).high) == pytest.approx((expected.low, expected.high), rel=1e-4)


def test_a_ratio_and_its_reciprocal_have_reciprocal_intervals() -> None:
    ratios = [1.1, 1.3, 0.9, 1.25]
    one, other = mean_ratio(ratios), mean_ratio([1 / each for each in ratios])
    assert one.value == pytest.approx(math.prod(ratios) ** 0.25)
    assert (one.value, one.low, one.high) == pytest.approx((1 / other.value, 1 / other.high, 1 / other.low))


def test_one_measurement_excludes_nothing() -> None:
    assert mean_of([2.0]) == Estimate(2.0, -math.inf, math.inf)
    assert mean_ratio([2.0]) == Estimate(pytest.approx(2.0), 0.0, math.inf)


def test_intervals_overlap_if_they_share_a_point() -> None:
    one = Estimate(0.5, 0.4, 0.6)
    assert one.overlaps(Estimate(0.7, 0.6, 0.8))
    assert Estimate(0.7, 0.6, 0.8).overlaps(one)
    assert not one.overlaps(Estimate(0.7, 0.61, 0.8))
    assert not Estimate(0.7, 0.61, 0.8).overlaps(one)


def test_an_estimate_is_printed_with_its_interval() -> None:
    assert f"{Estimate(0.5, 0.4, 0.61).times(100):.1f}" == "50.0 (40.0 to 61.0)"
    assert f"{mean_ratio([2.0]):.2f}" == "2.00 (0.00 to inf)"
