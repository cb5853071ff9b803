"""What has happened between two views of a star, in sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from starspec.observe.view import EventView, HubView, StarView, TargetView


class _Count(NamedTuple):
    """A counter whose growth is an event."""

    metric: str
    one: str  # with the number 1 in front
    many: str  # with any other


DECLINED: Final = "declined by the hub: no room for the draft"
ATTACHED_ANEW: Final = "all are attached anew, and streams go on"
TARGET_COUNTS: Final = (
    _Count("requests_rejected", "rejected", "rejected"),
    _Count("declined_tags", DECLINED, DECLINED),
    _Count("frames_rejected", "message of a gateway refused", "messages of gateways refused"),
    _Count("pipe_losses", f"stage lost: {ATTACHED_ANEW}", f"stages lost: {ATTACHED_ANEW}"),
)
HUB_COUNTS: Final = (
    _Count("hub_handshakes_refused", "handshake of a target refused", "handshakes of targets refused"),
    _Count(
        "hub_leases_expired", "target silent for longer than its lease", "targets silent for longer than their lease"
    ),
    _Count("hub_frames_rejected", "message of a target refused", "messages of targets refused"),
)
GOOD_STATES: Final = frozenset({"ready", "connected"})
TARGET_STATES: Final[Mapping[str, str]] = {
    "ready": "answers requests",
    "starting": "is loading its model",
    "silent": "does not answer: it gets no requests until it does",
    "stopping": "is stopping: running requests end, new ones go elsewhere",
    "refusing": "refuses this gateway: it is of another release, or no target",
    "unreachable": "is not reachable",
}
DRAFT_STATES: Final[Mapping[str, str]] = {
    "connected": "gets drafts from the hub",
    "connecting": "looks for the hub: it decodes plainly",
    "lost": "has lost the hub: it decodes plainly, and its answers stay the same",
}
HUB_STATES: Final[Mapping[str, str]] = {
    "connected": "answers",
    "connecting": "is not found yet",
    "lost": "does not answer",
}


def changes(before: StarView, after: StarView) -> Iterator[EventView]:
    """The events between two views of the same star, in any order."""
    for old, new in zip(before.targets, after.targets, strict=True):
        yield from _of_target(old, new, after.time_s)
    for old_hub, new_hub in zip(before.hubs, after.hubs, strict=True):
        yield from _of_hub(old_hub, new_hub, after.time_s)


def _of_target(old: TargetView, new: TargetView, now: float) -> Iterator[EventView]:
    yield from _state_change(old.state, new.state, new.name, TARGET_STATES, now)
    if new.hub is not None:
        was = old.hub.state if old.hub is not None else "connecting"
        yield from _state_change(was, new.hub.state, new.name, DRAFT_STATES, now)
    yield from _growth(old, new, TARGET_COUNTS, now)


def _of_hub(old: HubView, new: HubView, now: float) -> Iterator[EventView]:
    yield from _state_change(old.state, new.state, "the hub", HUB_STATES, now)
    yield from _growth(old, new, HUB_COUNTS, now)


def _state_change(old: str, new: str, who: str, says: Mapping[str, str], now: float) -> Iterator[EventView]:
    if new != old:
        kind = "good" if new in GOOD_STATES else "bad" if old in GOOD_STATES else "note"
        yield EventView(time_s=now, kind=kind, text=f"{who} {says[new]}")


def _growth(
    old: TargetView | HubView, new: TargetView | HubView, counts: tuple[_Count, ...], now: float
) -> Iterator[EventView]:
    for metric, one, many in counts:
        if metric in old.metrics and (grown := new.metrics.get(metric, 0) - old.metrics[metric]) > 0:
            what = one if grown == 1 else many
            yield EventView(time_s=now, kind="bad", text=f"{new.name}: {grown:.0f} {what}")
