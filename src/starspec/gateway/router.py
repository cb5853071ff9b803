"""Sends each request to a target.

`policy/routing.py` says which one: the least loaded target that can answer. Nothing here waits for a target:
sending never blocks. When a target is gone or silent, its own requests fail and no others. `Generation` sends those
that it can to another target.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

from starspec.audit import AuditLog
from starspec.gateway.background import run_forever
from starspec.gateway.routed_target import RoutedTarget, ServingLink
from starspec.gateway.target_set import Assignments, TargetSet
from starspec.log_limit import LogLimit
from starspec.policy.target_health import TargetHealth

RELIEF_INTERVAL_S: Final = 0.25  # between two looks for silent targets, whose waiting requests go elsewhere


class Router(TargetSet):
    """All targets of this gateway. An async context manager, which runs the tasks of the targets.

    Args:
        has_models: the targets serve different models. Otherwise each may take any request, whatever it announces.
    """

    def __init__(
        self,
        links: Sequence[ServingLink],
        clock: Callable[[], float] = time.monotonic,
        audit: AuditLog | None = None,
        *,
        has_models: bool = False,
    ) -> None:
        targets = tuple(RoutedTarget(link, clock, audit) for link in links)
        super().__init__(lambda: targets, Assignments(LogLimit(clock)))
        self._has_models = has_models
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

    def of(self, model: str) -> TargetSet:
        """The targets that announce this model."""
        return TargetSet(lambda: [each for each in self.targets if each.model == model], self._assignments)

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
        others = self.of(than.model).targets if self._has_models and than.model is not None else self.targets
        return any(each.snapshot().takes(num_positions) for each in others if each is not than)
