"""Exports status snapshots to Prometheus.

Any process can use it: a hub or a target for itself, the gateway for all processes that it is connected to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from starspec.observe.quantities import (
    HUB_COUNTERS,
    HUB_GAUGES,
    HUB_TARGET_COUNTERS,
    HUB_TARGET_GAUGES,
    TARGET_COUNTERS,
    TARGET_GAUGES,
    Quantity,
)
from starspec.stats import HubTargetStats, TargetStats
from starspec.wire.messages import HubStatus, TargetStatus

PREFIX: Final = "starspec_"
Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
S = TypeVar("S", TargetStatus, HubStatus, HubTargetStats)


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

    A hub's statistics of its targets have the label `target` too; a vLLM server has no other samples.
    """
    targets = {str(each.target_id): each for each in snapshot.targets}
    hubs = {snapshot.hub.draft_name: snapshot.hub} if snapshot.hub else {}
    at_hub = {str(name): stats for name, stats in snapshot.hub.targets.items()} if snapshot.hub else {}
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


def _families(quantities: Sequence[Quantity[S]], kind: Family, label: str, statuses: dict[str, S]) -> Iterator[Metric]:
    for quantity in quantities:
        family = kind(PREFIX + quantity.name, quantity.meaning, labels=[label])
        for name, status in statuses.items():
            family.add_metric([name], quantity.read(status))
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
