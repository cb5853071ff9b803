"""The benchmark of faults: gaps exactly, and once through with a synthetic star."""

import pytest
from typer.testing import CliRunner

import starspec.bench.faults
from starspec.bench.faults import NUM_STREAMS, FaultPlan, FaultRow, Stream, draft_options, fault_ratios, measure_faults
from starspec.cli import app
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report

SLOW = "a stream waited longer after a fault than is promised"
CHANGED = "a fault of the hub changed tokens"


def test_a_gap_counts_where_it_ends() -> None:
    stream = Stream(moments_s=[0.0, 1.0, 1.5, 4.0, 4.25])
    assert stream.longest_gap_s(0.0, 3.0) == 1.0
    assert stream.longest_gap_s(1.2, 5.0) == 2.5
    assert stream.longest_gap_s(4.1, 5.0) == 0.25
    assert stream.longest_gap_s(9.0, 10.0) == 0.0


def test_the_hub_is_told_the_target_of_a_head(headed: tuple[str, str]) -> None:
    target, head = headed
    models = ModelPair(target=target, draft=head, quantization="none", dtype="float32")
    assert draft_options(models) == (
        "--draft-quantization",
        "none",
        "--spec-method",
        "draft_model",
        "--target",
        target,
    )
    assert "--target" not in draft_options(ModelPair(target=head, draft=target, quantization="none", dtype="float32"))


def row(gap_ms: float, max_gap_ms: float, num_identical: int = 8) -> FaultRow:
    return FaultRow(
        fault="kill -9 and restart",
        num_answers=8,
        num_identical=num_identical,
        round_ms=20.0,
        calm_gap_ms=30.0,
        gap_ms=gap_ms,
        outage_gap_ms=2 * gap_ms,  # with a hub being loaded; nothing is promised of it
        max_gap_ms=max_gap_ms,
        back_s=1.0,
    )


def test_the_ratio_is_that_of_the_row_which_does_worst_by_its_own_promise() -> None:
    assert fault_ratios([row(300.0, 400.0), row(250.0, 250.0), row(100.0, 250.0)]) == {"longest_gap_vs_max": 1.0}


@pytest.mark.parametrize(
    ("rows", "sentences", "exit_code"),
    [
        ([row(200.0, 250.0)], (), 0),
        ([row(200.0, 250.0), row(251.0, 250.0)], (SLOW,), 0),
        ([row(200.0, 250.0, num_identical=7)], (CHANGED,), 1),
    ],
)
def test_what_was_not_kept_is_said(
    monkeypatch: pytest.MonkeyPatch, rows: list[FaultRow], sentences: tuple[str, ...], exit_code: int
) -> None:
    report = Report(collect_provenance(), rows, fault_ratios(rows))
    monkeypatch.setattr(starspec.bench.faults, "measure_faults", lambda *_: report)
    words = ["bench", "faults", "--target", "synthetic:", "--draft", "synthetic:"]
    result = CliRunner().invoke(app, [*words, "--draft-quantization", "none"])
    assert result.exit_code == exit_code, result.output
    said = " ".join(result.output.split())
    assert [each for each in (SLOW, CHANGED) if each in said] == list(sentences)


@pytest.mark.system
def test_each_fault_is_survived_and_timed() -> None:
    models = ModelPair(
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
    assert len(stages) == plan.num_turns
    for row in report.rows:
        assert row.num_identical == row.num_answers >= NUM_STREAMS
        assert row.round_ms >= 20
        assert row.gap_ms > 0 < row.calm_gap_ms
        assert row.max_gap_ms >= 250
        assert row.outage_gap_ms > 0
    assert report.ratios == fault_ratios(report.rows)
