"""The benchmark of faults: gaps exactly, and once through with a synthetic star."""

import pytest

from starspec.bench.faults.measure import NUM_STREAMS, FaultModels, FaultPlan, measure_faults
from starspec.bench.faults.streams import Stream


def test_a_gap_counts_where_it_ends() -> None:
    stream = Stream(moments_s=[0.0, 1.0, 1.5, 4.0, 4.25])
    assert stream.longest_gap_s(0.0, 3.0) == 1.0
    assert stream.longest_gap_s(1.2, 5.0) == 2.5
    assert stream.longest_gap_s(4.1, 5.0) == 0.25
    assert stream.longest_gap_s(9.0, 10.0) == 0.0


def test_the_hub_is_told_the_target_of_a_head(headed: tuple[str, str]) -> None:
    target, head = headed
    models = FaultModels(target=target, draft=head, quantization="none", dtype="float32")
    assert models.draft_options() == (
        "--draft-quantization",
        "none",
        "--spec-method",
        "draft_model",
        "--target",
        target,
    )
    assert (
        "--target" not in FaultModels(target=head, draft=target, quantization="none", dtype="float32").draft_options()
    )


@pytest.mark.system
def test_each_fault_is_survived_and_timed() -> None:
    models = FaultModels(
        target="synthetic:role=target,step_ms=20,seed=3",
        draft="synthetic:role=draft,step_ms=2,seed=3",
        quantization="none",
        dtype="float32",
    )
    plan = FaultPlan(num_tokens=40, calm_s=0.5, away_s=1.5, num_repeats=1)
    stages: list[str] = []
    report = measure_faults(models, [f"{number} is" for number in range(NUM_STREAMS)], plan, stages.append)
    assert [row.fault for row in report.rows] == ["kill -9 and restart", "SIGSTOP for 1.5 s"]
    assert stages == ["starting the star", "plain decoding", *(row.fault for row in report.rows)]
    for row in report.rows:
        assert row.num_identical == row.num_answers >= NUM_STREAMS
        assert row.round_ms >= 20
        assert row.gap_ms > 0 < row.calm_gap_ms
        assert row.max_gap_ms >= 250
        assert row.outage_gap_ms > 0
    assert report.ratios == {
        "longest_gap_vs_max": pytest.approx(max(row.gap_ms / row.max_gap_ms for row in report.rows), abs=1e-3)
    }
