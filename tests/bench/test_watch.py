"""The benchmark of dashboards: its ratios exactly, and once through with a synthetic star."""

from __future__ import annotations

import os
import time

import pytest

from starspec.bench.watch import (
    COST,
    RATIO,
    SPEED,
    WatchPlan,
    WatchRow,
    cpu_s,
    measure_watch,
    mistakes_of,
    watch_ratios,
)
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report

STAR = ModelPair(
    target="synthetic:vocab=256,step_ms=10,alpha=0.8",
    draft="synthetic:vocab=256,step_ms=2,alpha=0.8,role=draft",
    quantization="none",
)


def row(pair: int, num_dashboards: int, gateway_cpu: float, tokens_per_s: float = 10.0) -> WatchRow:
    return WatchRow(
        pair=pair,
        num_dashboards=num_dashboards,
        num_frames=0,
        num_tokens=100,
        tokens_per_s=tokens_per_s,
        star_cpu=1.0,
        gateway_cpu=gateway_cpu,
        reader_cpu=0.0,
    )


def test_each_interval_is_compared_with_the_one_beside_it() -> None:
    rows = [row(0, 16, 0.5), row(0, 0, 0.25), row(1, 0, 0.0), row(1, 16, 0.02, 9.0), row(2, 16, 0.25), row(2, 0, 0.25)]
    assert watch_ratios(rows) == {RATIO: 1.02, COST: 1.0, SPEED: 1.0}


@pytest.mark.parametrize(("slower", "num_mistakes"), [(1.01, 0), (1.02, 1), (0.9, 0)])
def test_more_than_one_percent_is_a_mistake(slower: float, num_mistakes: int) -> None:
    assert len(mistakes_of(Report(collect_provenance({}), [], {RATIO: slower}))) == num_mistakes


def test_processor_time_is_counted_in_small_parts() -> None:
    before = cpu_s(os.getpid()), time.process_time()
    while time.process_time() < before[1] + 0.05:
        pass
    assert cpu_s(os.getpid()) - before[0] == pytest.approx(0.05, abs=0.04)


@pytest.mark.system
def test_dashboards_are_open_in_every_second_interval() -> None:
    begun: list[str] = []
    plan = WatchPlan(num_dashboards=3, num_pairs=2, interval_s=1.2)
    report = measure_watch(STAR, ["bipa bigu", "bola befa"], plan, begun.append)
    assert begun == ["starting the star", "pair 1", "pair 2"]
    assert len(begun) == plan.num_turns
    assert [each.num_dashboards for each in report.rows] == [3, 0, 0, 3]
    assert [each.num_frames > 0 for each in report.rows] == [True, False, False, True]
    assert all(each.num_tokens > 0 and each.star_cpu > each.gateway_cpu > 0.0 for each in report.rows)
    assert set(report.ratios) == {RATIO, COST, SPEED}
