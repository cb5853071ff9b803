"""Stages, links and a coordinator in virtual time: the messages and decisions are real, and computing takes no time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from starspec.bench.shard.modelled_stage import ModelledStage
from starspec.ids import TargetId
from starspec.models.layers import LayerRange
from starspec.policy.traversal import Pipeline
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.frames import Frame
from starspec.stages.member import StageTimes
from starspec.stages.worker import StageWorker
from starspec.wire.messages import Attached, CoordinatorToStage, StageToCoordinator

MAX_PATIENCE_S: Final = 1e6


class VirtualPipe:
    """Implements PipeLink over stages that compute one frame after another.

    Args:
        pipeline: times of stages and links. The first stage is beside the coordinator.
    """

    def __init__(self, pipeline: Pipeline, num_rows: int, max_len: int) -> None:
        self.now = 0.0
        num_stages = len(pipeline.stages)
        self._free_s = [0.0] * num_stages  # when each has computed all that it was given
        self._runners = [
            ModelledStage(
                LayerRange(index, index + 1, num_stages), time, partial(self._spend, index), num_rows, max_len
            )
            for index, time in enumerate(pipeline.stages)
        ]
        self._workers = [StageWorker(each, partial(self._clock_of, index)) for index, each in enumerate(self._runners)]
        self._hops_s = [0.0, *pipeline.hops_s]
        self._return_s = pipeline.return_s
        self._queues: list[deque[tuple[float, Sequence[bytes | memoryview]]]] = [deque() for _ in self._runners]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._answers: list[tuple[int, StageToCoordinator]] = []

    def clock(self) -> float:
        return self.now

    def verifier(self, depth: int | None) -> RemoteVerifier:
        """A coordinator of these stages. Args: as of RemoteVerifier."""
        names = [f"stage {index}" for index in range(len(self._workers))]
        pipe = attach(
            self,
            names,
            TargetId("bench"),
            lease_s=MAX_PATIENCE_S,
            timeout_s=MAX_PATIENCE_S,
            clock=self.clock,
            slow_s=MAX_PATIENCE_S,
        )
        times = StageTimes(seen_within_s=MAX_PATIENCE_S)
        return RemoteVerifier(self, pipe, self._runners[0].info, depth=depth, clock=self.clock, times=times)

    def control(self, stage: int, message: CoordinatorToStage) -> None:
        def arrive() -> None:
            answer = self._workers[stage].control(message)
            if isinstance(answer, Attached) and stage + 1 < len(self._workers):
                answer = replace(answer, next_id=self._workers[stage + 1].session.stage_id)
            if answer is not None:
                self._at(self.now + self._return_s, lambda: self._answers.append((stage, answer)))

        self._at(self.now + sum(self._hops_s[: stage + 1]), arrive)

    def send(self, parts: Sequence[bytes | memoryview], stage: int = 0) -> None:
        def arrive() -> None:
            self._queues[stage].append((self.now, parts))
            self._work(stage)

        self._at(self.now + self._hops_s[stage], arrive)

    def receive(self, timeout_s: float) -> list[tuple[int, StageToCoordinator]]:
        end_s = self.now + timeout_s
        while not self._answers and self._events and self._events[0][0] <= end_s:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        if not self._answers:
            self.now = max(self.now, end_s)
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        pass

    def _work(self, stage: int) -> None:
        """Compute the next frame, if the stage is idle and there is one."""
        queue = self._queues[stage]
        if not queue or self._free_s[stage] > self.now:
            return
        self._free_s[stage] = self.now
        arrived_s, parts = queue.popleft()
        done = self._workers[stage].take(parts, self.now - arrived_s)

        def deliver() -> None:
            if isinstance(done, Frame):
                self.send(done.parts, stage + 1)
            elif done is not None:
                self._at(self.now + self._return_s, lambda: self._answers.append((stage, done)))
            self._work(stage)

        self._at(self._free_s[stage], deliver)

    def _spend(self, stage: int, seconds: float) -> None:
        self._free_s[stage] += seconds

    def _clock_of(self, stage: int) -> float:
        return max(self.now, self._free_s[stage])

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), happen))
