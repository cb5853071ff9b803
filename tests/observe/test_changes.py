"""What happens to a star becomes an event, once."""

from __future__ import annotations

from typing import Any

import msgspec

from starspec.observe.changes import DRAFT_STATES, HUB_STATES, TARGET_STATES, changes
from starspec.observe.view import HubView, LinkView, StarView, TargetView
from starspec.policy.target_health import TargetHealth

TARGET = TargetView(
    name="t0",
    state="ready",
    for_s=1.0,
    hub=LinkView(state="connected", for_s=1.0),
    metrics={"requests_rejected": 2.0, "declined_tags": 0.0, "frames_rejected": 0.0},
)
HUB = HubView(name="tiny", state="connected", for_s=1.0, metrics={"hub_handshakes_refused": 1.0})


def star(target: TargetView = TARGET, hub: HubView = HUB) -> StarView:
    empty: Any = {"requests": [], "events": [], "models": ["toy"], "version": "1", "shows_text": False}
    return StarView(time_s=7.0, is_ready=True, targets=[target], hubs=[hub], **empty)


def said(before: StarView, after: StarView) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in changes(before, after)]


def test_a_star_that_goes_on_makes_no_events() -> None:
    assert said(star(), star()) == []


def test_a_lost_hub_and_its_return_are_told_of_the_hub_and_of_each_target() -> None:
    gone = star(
        msgspec.structs.replace(TARGET, hub=LinkView(state="lost", for_s=0.0)),
        HubView(name="hub", state="lost", for_s=0.0),
    )
    assert said(star(), gone) == [
        ("bad", "t0 has lost the hub: it decodes plainly, and its answers stay the same"),
        ("bad", "the hub does not answer"),
    ]
    assert said(gone, star()) == [("good", "t0 gets drafts from the hub"), ("good", "the hub answers")]


def test_refusals_are_counted() -> None:
    metrics = {"requests_rejected": 5.0, "declined_tags": 1.0, "frames_rejected": 0.0}
    more = star(msgspec.structs.replace(TARGET, metrics=metrics))
    assert said(star(), more) == [
        ("bad", "t0: 3 rejected"),
        ("bad", "t0: 1 declined by the hub: no room for the draft"),
    ]
    assert said(more, star()) == []  # it was restarted, and counts from 0


def test_one_is_told_as_one() -> None:
    before = msgspec.structs.replace(TARGET, metrics={"pipe_losses": 0.0, "frames_rejected": 0.0})
    after = msgspec.structs.replace(TARGET, metrics={"pipe_losses": 1.0, "frames_rejected": 2.0})
    assert said(star(before), star(after)) == [
        ("bad", "t0: 2 messages of gateways refused"),
        ("bad", "t0: 1 stage lost: all are attached anew, and streams go on"),
    ]


def test_there_is_a_sentence_for_every_state() -> None:
    assert set(TARGET_STATES) == set(TargetHealth)
    assert set(DRAFT_STATES) == set(HUB_STATES) == {"connecting", "connected", "lost"}
