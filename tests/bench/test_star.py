"""Stars of synthetic accelerators: the equations, and real processes in small."""

from __future__ import annotations

import pytest

from starspec.bench.star import operating_point as point
from starspec.bench.star.async_pair import CASES, DRAFT_MS, PLAIN_MS, VERIFY_MS, PaperCase
from starspec.bench.star.measure import StarPlan, measure_star


def test_the_operating_point_is_that_of_the_papers_table() -> None:
    assert point.NOMINAL.num_full == 4
    for num_targets, row in point.PAPER.items():
        assert point.NOMINAL.rounds_per_s(num_targets) == pytest.approx(row.rounds_per_s, rel=0.15)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_synchronous_speculation_at_its_best_length_is_as_fast_as_in_the_paper(case: PaperCase) -> None:
    def speed(length: int) -> float:
        emitted = sum(case.alpha**depth for depth in range(length + 1))
        return emitted * PLAIN_MS / (length * DRAFT_MS + VERIFY_MS)

    best = max(range(1, 12), key=speed)
    assert best == case.length
    assert speed(best) == pytest.approx(case.synchronous, abs=0.005)


def test_a_small_star_is_served_and_counted() -> None:
    plan = StarPlan(num_targets=(1, 2), warm_up_s=0.3, seconds=0.7)
    report = measure_star(plan, lambda _: None)
    assert [(row.num_targets, row.service) for row in report.rows] == [
        (num_targets, service) for num_targets in (1, 2) for service in ("one at a time", "full")
    ]
    for row in report.rows:
        assert row.tokens_per_s > 0
        assert 1 < row.tokens_per_round < 1 + point.DEPTH
        assert (row.hit_rate > 0) == (row.service == "full")
    assert {"closed_form_error_max", "per_target_n1_vs_off", "min_per_target_vs_plain"} <= report.ratios.keys()
