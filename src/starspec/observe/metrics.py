"""Exports status snapshots to Prometheus.

Any process can use it: a hub or a target for itself, the gateway for all processes that it is connected to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from starspec.observe.quantities import (
    HUB_COUNTERS,
    HUB_GAUGES,
    HUB_TARGET_COUNTERS,
    HUB_TARGET_GAUGES,
    PIPE_COUNTERS,
    PIPE_GAUGES,
    STAGE_COUNTERS,
    STAGE_GAUGES,
    TARGET_COUNTERS,
    TARGET_GAUGES,
    Quantity,
)
from starspec.stats import HubTargetStats, StageStats, TargetStats
from starspec.wire.messages import HubStatus, TargetStatus

PREFIX: Final = "starspec_"
Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
S = TypeVar("S", TargetStatus, HubStatus, HubTargetStats, StageStats)


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """The statuses at one moment."""

    targets: tuple[TargetStatus, ...] = ()
    hub: HubStatus | None = None


class StatusCollector(Collector):
    """Gets a snapshot at every scrape and turns it into metric families.

    Args:
        snapshot: called on the scraping thread; must not block.
    """

    def __init__(self, snapshot: Callable[[], StatusSnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        return families(self._snapshot())

    def describe(self) -> Iterator[Metric]:
        """The families without samples, so that registration needs no snapshot."""
        return families(StatusSnapshot())


def families(snapshot: StatusSnapshot) -> Iterator[Metric]:
    """Every family, with one sample for each target (label `target`) or for the hub (label `draft`).

    A hub's statistics of its targets have the label `target` too; a vLLM server has no other samples. Those of a
    target's stages also have `stage`, their place from 0.
    """
    targets = {str(each.target_id): each for each in snapshot.targets}
    in_stages = {name: each for name, each in targets.items() if each.stats.pipe is not None}
    stages: dict[tuple[str, ...], StageStats] = {
        (name, str(stage.index)): stage
        for name, each in in_stages.items()
        for stage in (each.stats.pipe.stages if each.stats.pipe else ())
        if stage.index is not None
    }
    hubs = {snapshot.hub.draft_name: snapshot.hub} if snapshot.hub else {}
    at_hub = {str(name): stats for name, stats in snapshot.hub.targets.items()} if snapshot.hub else {}
    yield _models(snapshot.targets)
    yield from _families(TARGET_COUNTERS, CounterMetricFamily, "target", targets)
    yield _counts(
        snapshot.targets,
        f"{PREFIX}spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens accepted at each position.",
        "position",  # as in vLLM, 0 is the first draft token
        lambda stats: enumerate(stats.acceptance.num_accepted_tokens_per_pos),
    )
    yield _counts(
        snapshot.targets,
        f"{PREFIX}draft_length_choices",
        "Draft lengths that the policy chose.",
        "steps",
        lambda stats: enumerate(stats.lengths.num_by_length),
    )
    yield _counts(
        snapshot.targets,
        f"{PREFIX}draft_length_reasons",
        "Why the policy chose no longer draft: cap, cost, doubt, probe or off.",
        "reason",
        lambda stats: stats.lengths.num_by_reason.items(),
    )
    yield from _families(TARGET_GAUGES, GaugeMetricFamily, "target", targets)
    yield from _families(HUB_COUNTERS, CounterMetricFamily, "draft", hubs)
    yield from _families(HUB_GAUGES, GaugeMetricFamily, "draft", hubs)
    yield from _families(HUB_TARGET_COUNTERS, CounterMetricFamily, "target", at_hub)
    yield from _families(HUB_TARGET_GAUGES, GaugeMetricFamily, "target", at_hub)
    yield from _families(PIPE_COUNTERS, CounterMetricFamily, "target", in_stages)
    yield from _families(PIPE_GAUGES, GaugeMetricFamily, "target", in_stages)
    yield from _labelled(STAGE_COUNTERS, CounterMetricFamily, ("target", "stage"), stages)
    yield from _labelled(STAGE_GAUGES, GaugeMetricFamily, ("target", "stage"), stages)


def _models(targets: Sequence[TargetStatus]) -> Metric:
    """Which model each target serves, to be joined with its other metrics."""
    family = GaugeMetricFamily(
        f"{PREFIX}target_info", "Always 1; which model a target serves.", labels=["target", "model"]
    )
    for target in targets:
        family.add_metric([str(target.target_id), target.model], 1.0)
    return family


def _families(quantities: Sequence[Quantity[S]], kind: Family, label: str, statuses: dict[str, S]) -> Iterator[Metric]:
    return _labelled(quantities, kind, (label,), {(name,): status for name, status in statuses.items()})


def _labelled(
    quantities: Sequence[Quantity[S]], kind: Family, labels: Sequence[str], statuses: Mapping[tuple[str, ...], S]
) -> Iterator[Metric]:
    """Args: statuses: by the values of the labels."""
    for quantity in quantities:
        family = kind(PREFIX + quantity.name, quantity.meaning, labels=labels)
        for values, status in statuses.items():
            family.add_metric(values, quantity.read(status))
        yield family


def _counts(
    targets: Sequence[TargetStatus],
    name: str,
    meaning: str,
    label: str,
    counts_of: Callable[[TargetStats], Iterable[tuple[object, int]]],
) -> Metric:
    """A counter with one sample for each target and each value of another label."""
    family = CounterMetricFamily(name, meaning, labels=["target", label])
    for target in targets:
        for value, count in counts_of(target.stats):
            family.add_metric([str(target.target_id), str(value)], count)
    return family
