"""The Grafana dashboard asks for metrics that a gateway has, by labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from starspec.gateway.metrics import GatewayMetrics
from starspec.ids import TargetId
from starspec.observe.metrics import StatusSnapshot
from starspec.stats import (
    AcceptanceStats,
    HubStats,
    HubTargetStats,
    LengthStats,
    PipeStats,
    StageStats,
    TargetStats,
)
from starspec.wire.messages import HubStatus, TargetStatus

DOCS: Final = Path(__file__).parents[2] / "docs"
DASHBOARD: Final = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
PANELS: Final = DASHBOARD["panels"]


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Name of each sample -> its labels, of a gateway with a target in stages and a hub."""
    lengths, pipe = LengthStats(), PipeStats(stages=[StageStats(endpoint="tcp://a:1", index=0)])
    lengths.add(2, "cost")
    status = TargetStatus(
        target_id=TargetId("t0"),
        model="toy",
        max_model_len=8,
        num_running=0,
        num_waiting=0,
        num_rows=1,
        num_free_rows=1,
        is_draft_connected=True,
        stats=TargetStats(acceptance=AcceptanceStats(num_accepted_tokens_per_pos=[1]), lengths=lengths, pipe=pipe),
    )
    hub = HubStatus("tiny", HubStats(), {TargetId("t0"): HubTargetStats()})
    metrics = GatewayMetrics(lambda: StatusSnapshot((status,), hub), lambda: 0)
    metrics.requests.labels("/v1/completions", "200").inc()
    return {sample.name: set(sample.labels) for family in metrics.registry.collect() for sample in family.samples}


def expressions() -> list[tuple[str, dict[str, Any]]]:
    return [(panel["title"], query) for panel in PANELS for query in panel["targets"]]


@pytest.mark.parametrize(("title", "query"), expressions())
def test_every_query_names_metrics_and_labels_that_there_are(
    title: str, query: dict[str, Any], labels: dict[str, set[str]]
) -> None:
    names = re.findall(r"starspec_\w+", query["expr"])
    assert names, title
    assert set(names) <= labels.keys()
    grouped = {each.strip() for group in re.findall(r"by \(([^)]*)\)", query["expr"]) for each in group.split(",")}
    shown = set(re.findall(r"\{\{(\w+)\}\}", query["legendFormat"]))
    assert grouped | shown <= set().union(*(labels[name] for name in names))


def test_the_variable_for_jobs_asks_for_a_metric_that_there_is(labels: dict[str, set[str]]) -> None:
    (job,) = [each for each in DASHBOARD["templating"]["list"] if each["name"] == "job"]
    assert set(re.findall(r"starspec_\w+", job["query"])) <= labels.keys()


def test_panels_lie_beside_each_other_and_have_numbers_of_their_own() -> None:
    places = [each["gridPos"] for each in PANELS]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({each["id"] for each in PANELS}) == len(PANELS)


def test_the_page_lists_all_panels_in_their_order() -> None:
    page = " ".join((DOCS / "dashboard.md").read_text(encoding="utf-8").split())
    assert f" {'; '.join(each['title'] for each in PANELS)} ``` " in page
