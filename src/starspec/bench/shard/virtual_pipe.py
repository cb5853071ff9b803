"""Stages, links and a coordinator in virtual time: the messages and decisions are real, and computing takes no time.

The tokens of a sequence are a function of the position, so a draft is as good as it is told to be.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.ids import TargetId
from starspec.models.layers import LayerRange
from starspec.models.runner import ForwardOutput, ModelInfo, Segment
from starspec.policy.traversal import Pipeline, StageTime
from starspec.stages.attach import attach
from starspec.stages.coordinator import RemoteVerifier
from starspec.stages.frames import Frame
from starspec.stages.membership import StageTimes
from starspec.stages.worker import StageWorker
from starspec.wire.messages import CoordinatorToStage, StageToCoordinator

VOCAB: Final = 16
COORDINATOR: Final = -1
MAX_PATIENCE_S: Final = 1e6


def true_token(position: int) -> int:
    """What the target emits at a position, whatever the sequence."""
    return (position * position + 3 * position) % VOCAB


class VirtualStage:
    """Implements Stage. A forward takes the time that it is told to take, on the stage's own clock.

    Args:
        layers: of the model; here each stage has one.
        time: of a forward.
        num_rows: of the cache.
        max_len: positions of a row.
    """

    def __init__(self, layers: LayerRange, time: StageTime, num_rows: int, max_len: int) -> None:
        self.layers = layers
        self.cache = RaggedCache(1, num_rows, max_len, 1, 1)
        self.info = ModelInfo("virtual", VOCAB, max_len, 1, 1, (), layers.num_layers, 1, fingerprint="virtual")
        self.free_s = 0.0  # when it has computed all that it was given
        self._time = time

    def forward(
        self, segments: Sequence[Segment], feature_layers: Sequence[int] = (), *, hidden: Tensor | None = None
    ) -> ForwardOutput:
        assert not feature_layers
        num_tokens = sum(len(each.token_ids) for each in segments)
        self.free_s += self._time.forward_s(num_tokens)
        wanted = [
            self.cache.lengths[each.row] + index + 1
            for each in segments
            for index in range(len(each.token_ids) - each.num_logits, len(each.token_ids))
        ]
        states = torch.zeros(num_tokens, 1) if hidden is None else hidden
        if not self.layers.is_last:
            return ForwardOutput(torch.empty(0, VOCAB), None, states)
        logits = torch.zeros(len(wanted), VOCAB)
        for row, position in enumerate(wanted):
            logits[row, true_token(position)] = 1.0
        return ForwardOutput(logits)


class VirtualPipe:
    """Implements PipeLink over stages that compute one frame after another.

    Args:
        pipeline: times of stages and links. The first stage is beside the coordinator.
    """

    def __init__(self, pipeline: Pipeline, num_rows: int, max_len: int) -> None:
        self.now = 0.0
        num_stages = len(pipeline.stages)
        self._runners = [
            VirtualStage(LayerRange(index, index + 1, num_stages), time, num_rows, max_len)
            for index, time in enumerate(pipeline.stages)
        ]
        self._workers = [StageWorker(each, self._clock_of(each)) for each in self._runners]
        self._hops_s = [0.0, *pipeline.hops_s]
        self._return_s = pipeline.return_s
        self._queues: list[deque[Sequence[bytes | memoryview]]] = [deque() for _ in self._runners]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._answers: list[tuple[int, StageToCoordinator]] = []

    def clock(self) -> float:
        return self.now

    def verifier(self, depth: int | None) -> RemoteVerifier:
        """A coordinator of these stages. Args: as of RemoteVerifier."""
        names = [f"stage {index}" for index in range(len(self._workers))]
        pipe = attach(
            self, names, TargetId("bench"), lease_s=MAX_PATIENCE_S, timeout_s=MAX_PATIENCE_S, clock=self.clock
        )
        times = StageTimes(seen_within_s=MAX_PATIENCE_S)
        return RemoteVerifier(self, pipe, self._runners[0].info, depth=depth, clock=self.clock, times=times)

    def control(self, stage: int, message: CoordinatorToStage) -> None:
        def arrive() -> None:
            answer = self._workers[stage].control(message)
            if answer is not None:
                self._at(self.now + self._return_s, lambda: self._answers.append((stage, answer)))

        self._at(self.now + sum(self._hops_s[: stage + 1]), arrive)

    def send(self, parts: Sequence[bytes | memoryview], stage: int = 0) -> None:
        def arrive() -> None:
            self._queues[stage].append(parts)
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
        runner, queue = self._runners[stage], self._queues[stage]
        if not queue or runner.free_s > self.now:
            return
        runner.free_s = self.now
        done = self._workers[stage].take(queue.popleft())

        def deliver() -> None:
            if isinstance(done, Frame):
                self.send(done.parts, stage + 1)
            elif done is not None:
                self._at(self.now + self._return_s, lambda: self._answers.append((stage, done)))
            self._work(stage)

        self._at(runner.free_s, deliver)

    def _clock_of(self, runner: VirtualStage) -> Callable[[], float]:
        return lambda: max(self.now, runner.free_s)

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), happen))
