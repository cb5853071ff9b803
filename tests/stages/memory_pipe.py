"""Stages within one process: every frame is encoded, travels in virtual time, and is decoded."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from starspec.models.runner import Stage
from starspec.stages.frames import Frame
from starspec.stages.worker import StageWorker
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import CoordinatorToStage, StageToCoordinator


class MemoryPipe:
    """Implements PipeLink over workers. Each link keeps its order; links overtake each other.

    Args:
        runners: the stages.
        delay: seconds of the next frame on its link.
    """

    def __init__(self, runners: Sequence[Stage], delay: Callable[[], float] = lambda: 0.0) -> None:
        self.now = 0.0
        self.runners = list(runners)
        self.workers = [StageWorker(each, self.clock) for each in runners]
        self.num_bytes = 0  # of all traversals on all links
        self.lose_next: int | None = None  # a stage whose next traversal does not arrive
        self._delay = delay
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._arrivals: dict[tuple[str, int], float] = {}
        self._answers: list[tuple[int, StageToCoordinator]] = []
        self._to_stage = Decoder[CoordinatorToStage](CoordinatorToStage)
        self._to_coordinator = Decoder[StageToCoordinator](StageToCoordinator)

    def clock(self) -> float:
        return self.now

    def restart(self, stage: int) -> None:
        """A stage comes back without memory."""
        runner = self.runners[stage]
        for row in set(runner.cache.rows.leased):
            runner.cache.free(row)
        self.workers[stage] = StageWorker(runner, self.clock)

    def control(self, stage: int, message: CoordinatorToStage) -> None:
        frame = encode(message)

        def arrive() -> None:
            answer = self.workers[stage].control(self._to_stage.decode(frame))
            if answer is not None:
                self._answer(stage, answer)

        self._at(("control", stage), arrive)

    def send(self, parts: Sequence[bytes], stage: int = 0) -> None:
        self.num_bytes += sum(map(len, parts))

        def arrive() -> None:
            if self.lose_next == stage:
                self.lose_next = None
                return
            answer = self.workers[stage].take(parts)
            if isinstance(answer, Frame):
                self.send(answer.parts, stage + 1)
            elif answer is not None:
                self._answer(stage, answer)

        self._at(("traversal", stage), arrive)

    def receive(self, timeout_s: float) -> list[tuple[int, StageToCoordinator]]:
        end_s = self.now + timeout_s
        while not self._answers and self._events and self._events[0][0] <= end_s:
            self._step()
        if not self._answers:
            self.now = max(self.now, end_s)
        answers, self._answers = self._answers, []
        for worker in self.workers:
            worker.check_lease()
        return answers

    def close(self) -> None:
        pass

    def drain(self) -> None:
        """Deliver everything that is on its way."""
        while self._events:
            self._step()

    def _step(self) -> None:
        at, _, arrive = heapq.heappop(self._events)
        self.now = max(self.now, at)
        arrive()

    def _answer(self, stage: int, message: StageToCoordinator) -> None:
        decoded = self._to_coordinator.decode(encode(message))
        self._at(("answer", stage), lambda: self._answers.append((stage, decoded)))

    def _at(self, link: tuple[str, int], arrive: Callable[[], None]) -> None:
        at = max(self.now + self._delay(), self._arrivals.get(link, 0.0))
        self._arrivals[link] = at
        heapq.heappush(self._events, (at, next(self._numbers), arrive))
