"""Steps after gaps."""

from __future__ import annotations

import pytest

from starspec.bench.warm import NUM_TIMED, WarmPlan, measure_warm
from starspec.config import ModelConfig


def test_every_gap_is_timed_and_compared_with_none() -> None:
    draft = ModelConfig(model="synthetic:role=draft,step_ms=1", num_rows=1, num_threads=1)
    repeats: list[str] = []
    report = measure_warm(draft, WarmPlan(gaps_ms=(0.0, 5.0), num_repeats=3), repeats.append)
    assert [row.gap_ms for row in report.rows] == [0.0, 5.0]
    assert all(len(row.step_ms) == NUM_TIMED and min(row.step_ms) >= 1.0 for row in report.rows)
    assert report.rows[0].first_vs_steady == pytest.approx(1.0)
    assert report.ratios == {"step_after_5_ms_idle_vs_none": report.rows[1].first_vs_steady}
    assert len(repeats) == 3
