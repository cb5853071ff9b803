"""Looks at the star twice a second, and when the hub is lost or back.

It keeps ten minutes of history and the last events, and wakes who watches.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from starspec import __version__
from starspec.gateway.answers import Answer
from starspec.gateway.background import STEPS
from starspec.gateway.dashboard.finished import FinishedRequests
from starspec.gateway.hub_status import HubStatusPoller
from starspec.gateway.routed_target import RoutedTarget
from starspec.gateway.router import Router
from starspec.observe.changes import changes
from starspec.observe.history import Recorder
from starspec.observe.view import (
    EventView,
    HubView,
    LinkView,
    StarView,
    TargetView,
    hub_metrics,
    hub_target_metrics,
    stage_views,
    target_metrics,
)

LOOK_S: Final = 0.5
NUM_EVENTS: Final = 100


class StarFeed:
    """What a dashboard is told. A frame is made once, however many watch, and not at all while nobody does.

    Args:
        models: as /v1/models names them.
        wall_clock: Unix time.
    """

    def __init__(
        self,
        router: Router,
        hub: HubStatusPoller | None,
        models: Sequence[str],
        *,
        shows_text: bool,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._requests = FinishedRequests(shows_text=shows_text, wall_clock=wall_clock)
        self._router = router
        self._hub = hub
        self._models = list(models)
        self._shows_text = shows_text
        self._wall_clock = wall_clock
        self._recorder = Recorder()
        self._events: deque[EventView] = deque(maxlen=NUM_EVENTS)
        self._last: StarView | None = None
        self._watching: list[asyncio.Future[bytes]] = []  # for the next frame; done: they have left
        if hub is not None:  # a hung hub is known to be lost 1.5 s later at worst: this leaves time to show it within 2
            hub.on_change(self.look)

    def note_finished(
        self, request_id: str, target: RoutedTarget, num_prompt_tokens: int, answers: Sequence[Answer]
    ) -> None:
        """A request has ended, and all its answers are whole. Args: target: the one that answered first."""
        name = self._router.names[self._router.targets.index(target)]
        self._requests.add(request_id, name, num_prompt_tokens, answers)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Take in the star as it is now. Effects: wakes those who wait for the next frame."""
        view = self._view()
        if self._last is not None:
            self._events.extendleft(changes(self._last, view))
        self._last = view
        self._recorder.add(view)
        watching, self._watching = [each for each in self._watching if not each.done()], []
        if watching:
            _hand_out(msgspec.json.encode(self._view()), watching)  # with the events of now

    async def next_frame(self) -> bytes:
        """The next view, as JSON; within LOOK_S. Frames that come while the caller is busy are lost for it."""
        frame: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._watching.append(frame)
        return await frame

    def whole(self) -> bytes:
        """The view and its history, as JSON."""
        whole: dict[str, Any] = {"star": self._view(), "history": self._recorder.history()}
        return msgspec.json.encode(whole)

    def _view(self) -> StarView:
        return StarView(
            time_s=self._wall_clock(),
            models=self._models,
            version=__version__,
            is_ready=self._router.is_ready,
            shows_text=self._shows_text,
            targets=[*map(_target_view, self._router.targets, self._router.names)],
            hubs=[] if self._hub is None else [_hub_view(self._hub)],
            requests=self._requests.latest,
            events=list(self._events),
        )


def _hand_out(frame: bytes, watching: Sequence[asyncio.Future[bytes]]) -> None:
    """Give a frame to a few now, and to a few in each further turn of the event loop: sending takes time."""
    for each in watching[:STEPS]:
        if not each.done():
            each.set_result(frame)
    if rest := watching[STEPS:]:
        asyncio.get_running_loop().call_soon(_hand_out, frame, rest)


def _target_view(routed: RoutedTarget, name: str) -> TargetView:
    status = routed.status
    has_hub = status is not None and status.hub_state is not None
    return TargetView(
        name=name,
        state=routed.state,
        for_s=routed.state_s,
        hub=LinkView(state=str(status.hub_state), for_s=status.hub_state_s) if status and has_hub else None,
        status=status,
        metrics={} if status is None else target_metrics(status),
        stages=[] if status is None else stage_views(status),
    )


def _hub_view(hub: HubStatusPoller) -> HubView:
    status = hub.status
    if status is None:
        return HubView(name="hub", state=hub.state, for_s=hub.state_s)
    return HubView(
        name=status.draft_name,
        state=hub.state,
        for_s=hub.state_s,
        status=status,
        metrics=hub_metrics(status),
        targets={str(name): hub_target_metrics(stats) for name, stats in status.targets.items()},
    )
