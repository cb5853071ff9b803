"""Sends each request to a target.

`policy/routing.py` says which one: the least loaded target that can answer. Nothing here waits for a target:
sending never blocks. When a target is gone or silent, its own requests fail and no others. `Generation` sends those
that it can to another target.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec

from starspec.audit import AuditLog
from starspec.errors import CapacityError
from starspec.gateway.background import run_forever
from starspec.gateway.routed_target import RoutedTarget, ServingLink
from starspec.ids import TargetId
from starspec.log_limit import LogLimit
from starspec.policy.retry_after import NO_TARGET_S
from starspec.policy.routing import pick
from starspec.policy.target_health import TargetHealth
from starspec.wire.messages import TargetStatus

RELIEF_INTERVAL_S: Final = 0.25  # between two looks for silent targets, whose waiting requests go elsewhere


class Router:
    """All targets of this gateway. An async context manager, which runs the tasks of the targets."""

    def __init__(
        self,
        links: Sequence[ServingLink],
        clock: Callable[[], float] = time.monotonic,
        audit: AuditLog | None = None,
    ) -> None:
        self.targets = tuple(RoutedTarget(link, clock, audit) for link in links)
        self.log_limit = LogLimit(clock)  # of what requests cause
        self._num_assigned = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for routed in self.targets:
            self._tasks += [asyncio.create_task(run_forever(run)) for run in (routed.listen, routed.ask)]
        self._tasks.append(asyncio.create_task(run_forever(self._watch)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for routed in self.targets:
            routed.close()

    @property
    def statuses(self) -> tuple[TargetStatus, ...]:
        """The statuses of the live targets. Targets of the same name get their endpoints in the name."""
        live = [(routed, routed.status) for routed in self.targets if routed.is_live and routed.status is not None]
        num_namesakes = Counter(status.target_id for _, status in live)
        return tuple(
            status if num_namesakes[status.target_id] == 1 else _renamed(status, routed.endpoint)
            for routed, status in live
        )

    @property
    def is_ready(self) -> bool:
        """Whether a target can answer now."""
        return any(routed.can_answer for routed in self.targets)

    @property
    def max_model_len(self) -> int | None:
        """The longest context of a live target; None if there is none."""
        return max((status.max_model_len for status in self.statuses), default=None)

    @property
    def has_grammars(self) -> bool:
        """Whether all live targets can hold answers to grammars. An old one would ignore them."""
        return all(status.has_grammars for status in self.statuses)

    @property
    def has_bad_words(self) -> bool:
        """Whether all live targets keep bad words out. An old one would ignore them."""
        return all(status.has_bad_words for status in self.statuses)

    @property
    def max_num_requests(self) -> int | None:
        """Requests that all targets together hold at most; None while one of them is not live or does not report it."""
        statuses = [routed.status for routed in self.targets if routed.is_live]
        known = [each.max_num_requests for each in statuses if each and each.max_num_requests is not None]
        return sum(known) if known and len(known) == len(self.targets) else None

    def pick(self, num_positions: int, but_not: RoutedTarget | None = None) -> RoutedTarget:
        """The target for a request, as `policy/routing.py` says. Effects: it counts as picked last.

        Args:
            num_positions: that the request can need.
            but_not: a target that shall not be picked.
        Raises: CapacityError if no target is ready and has a context that is long enough.
        """
        others = [each for each in self.targets if each is not but_not]
        index = pick([each.snapshot() for each in others], num_positions)
        if index is None:
            raise CapacityError("no target is connected that could take this request", NO_TARGET_S)
        routed = others[index]
        self._num_assigned += 1
        routed.note_assigned(self._num_assigned)
        return routed

    def relieve(self) -> None:
        """Fail the requests that wait at silent targets and that another target takes."""
        for silent in self.targets:
            if silent.num_open and silent.state is TargetHealth.SILENT:
                silent.release(partial(self._has_other, silent))

    async def _watch(self) -> None:
        while True:
            self.relieve()
            await asyncio.sleep(RELIEF_INTERVAL_S)

    def _has_other(self, than: RoutedTarget, num_positions: int) -> bool:
        return any(each.snapshot().takes(num_positions) for each in self.targets if each is not than)


def _renamed(status: TargetStatus, endpoint: str) -> TargetStatus:
    return msgspec.structs.replace(status, target_id=TargetId(f"{status.target_id} at {endpoint}"))
