"""The star as people watch it: what the dashboard, `starspec top` and their tests read, as one JSON object.

The numbers are those of `/metrics`, under the same names. A counter has its name without `_total`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from starspec.ids import TargetId
from starspec.observe.metrics import StatusSnapshot
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
    S,
)
from starspec.stats import HubTargetStats
from starspec.wire.messages import HubStatus, TargetStatus

Values = dict[str, float]  # by the metric's name


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a link, and for how many seconds it has been so."""

    state: str
    for_s: float


class StageView(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a target, or a spare."""

    endpoint: str
    layers: str  # START:END; "" = not known yet
    index: int | None  # None: a spare
    state: str
    metrics: Values = {}  # of a stage


class TargetView(msgspec.Struct, frozen=True, kw_only=True):
    """One target."""

    name: str  # its endpoint, until it has told its name; no two targets have the same
    state: str  # as /health names it
    for_s: float  # seconds in this state
    hub: LinkView | None = None  # None: it has no hub, or has not told
    status: TargetStatus | None = None  # as it told it; None: it is not connected
    metrics: Values = {}
    stages: list[StageView] = []  # of its model, in the order of their layers, spares last; none: it is not cut


class HubView(msgspec.Struct, frozen=True, kw_only=True):
    """One hub."""

    name: str
    state: str
    for_s: float
    status: HubStatus | None = None
    metrics: Values = {}
    targets: dict[str, Values] = {}  # what it knows of each target, by the target's name


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """One request that has ended. Sums over its answers."""

    request_id: str
    ended_s: float  # Unix time
    target: str
    num_prompt_tokens: int
    num_tokens: int
    finish_reason: str
    acceptance_length: float
    acceptance_rate: float
    accepted: list[int]  # [accepted draft tokens] -> rounds with a draft
    tokens_per_s: float | None  # after the first token; None: of several answers, or of one token
    first_token_ms: float | None
    text: str | None = None  # the beginning; None unless the gateway has --show-text


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that people should know of."""

    time_s: float  # Unix time
    kind: str  # good, bad or note
    text: str


class StarView(msgspec.Struct, frozen=True, kw_only=True):
    """The star at one moment."""

    time_s: float  # Unix time
    models: list[str]  # as /v1/models names them
    version: str
    is_ready: bool  # a target can answer
    shows_text: bool
    targets: list[TargetView]
    hubs: list[HubView]
    requests: list[RequestView]  # the newest first
    events: list[EventView]  # the newest first


def target_metrics(status: TargetStatus) -> Values:
    of_pipe = () if status.stats.pipe is None else (*PIPE_COUNTERS, *PIPE_GAUGES)
    return _values((*TARGET_COUNTERS, *TARGET_GAUGES, *of_pipe), status)


def stage_views(status: TargetStatus) -> list[StageView]:
    stages = [] if status.stats.pipe is None else status.stats.pipe.stages
    return [
        StageView(
            endpoint=each.endpoint,
            layers=each.layers,
            index=each.index,
            state=each.state,
            metrics={} if each.index is None else _values((*STAGE_COUNTERS, *STAGE_GAUGES), each),
        )
        for each in stages
    ]


def hub_metrics(status: HubStatus) -> Values:
    return _values((*HUB_COUNTERS, *HUB_GAUGES), status)


def hub_target_metrics(stats: HubTargetStats) -> Values:
    return _values((*HUB_TARGET_COUNTERS, *HUB_TARGET_GAUGES), stats)


def _values(quantities: Sequence[Quantity[S]], status: S) -> Values:
    return {each.name: each.read(status) for each in quantities}


def snapshot_of(view: StarView) -> StatusSnapshot:
    """The statuses in a view, as tables take them: under the names of the view."""
    targets = (
        msgspec.structs.replace(each.status, target_id=TargetId(each.name))
        for each in view.targets
        if each.status is not None
    )
    hubs = [hub.status for hub in view.hubs if hub.status is not None]
    return StatusSnapshot(tuple(targets), hubs[0] if hubs else None)
