"""Stages within one process: every frame is encoded, travels in virtual time, and is decoded."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from starspec.config import PipeConfig
from starspec.errors import PeerProtocolError
from starspec.models.runner import Stage
from starspec.stages.frames import Frame
from starspec.stages.worker import StageWorker
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import Attached, CoordinatorToStage, StageToCoordinator
from starspec.wire.stage_session import StageState

COORDINATOR = -1
SILENCE_S = PipeConfig().silence_s  # after which a stage says that the next one is gone
Link = tuple[str, int, int]
"""Kind, sender, receiver."""


class MemoryPipe:
    """Implements PipeLink over workers. Each link keeps its order; links overtake each other.

    Args:
        runners: the stages, and the spares behind them.
        delay: seconds of the next frame on its link.
    """

    def __init__(self, runners: Sequence[Stage], delay: Callable[[], float] = lambda: 0.0) -> None:
        self.now = 0.0
        self.runners = list(runners)
        self.names = [f"s{index}" for index in range(len(runners))]
        self.workers = [StageWorker(each, self.clock) for each in runners]
        self.num_bytes = 0  # of all traversals on all links
        self.lose_next: int | None = None  # a stage whose next traversal does not arrive
        self.killed: set[int] = set()
        self.paused: set[int] = set()
        self.cut: set[int] = set()  # stages that nothing reaches or leaves
        self.cut_links: set[tuple[int, int]] = set()  # from a stage to the next one
        self.cut_traversals: set[tuple[int, int]] = set()  # no traversal passes there, though all else does
        self.told_next: dict[int, str] = {}  # names of stages that some send to, whatever the coordinator says
        self._delay = delay
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._arrivals: dict[Link, float] = {}
        self._held: list[tuple[Link, Callable[[], None]]] = []  # until a stage goes on, or a link is whole again
        self._answers: list[tuple[int, StageToCoordinator]] = []
        self._to_stage = Decoder[CoordinatorToStage](CoordinatorToStage)
        self._to_coordinator = Decoder[StageToCoordinator](StageToCoordinator)

    def clock(self) -> float:
        return self.now

    # ---------------------------------------------------------------- faults

    def restart(self, stage: int) -> None:
        """A stage comes back without memory."""
        runner = self.runners[stage]
        for row in set(runner.cache.rows.leased):
            runner.cache.free(row)
        self.workers[stage] = StageWorker(runner, self.clock)
        self.killed.discard(stage)
        self.resume(stage)

    def kill(self, stage: int) -> None:
        self.killed.add(stage)

    def pause(self, stage: int) -> None:
        self.paused.add(stage)

    def resume(self, stage: int) -> None:
        self.paused.discard(stage)
        self._release()

    def heal(self, stage: int, *, are_frames_lost: bool) -> None:
        """The links of a stage are whole again: connections go on, or begin anew and their frames are lost."""
        self.cut.discard(stage)
        if are_frames_lost:
            self._held = [each for each in self._held if stage not in each[0][1:]]
        self._release()

    def cut_link(self, near: int, far: int) -> None:
        """The nearer stage notices it later, unless it is attached anew meanwhile; then it does not answer that."""
        self.cut_links.add((near, far))
        session = self.workers[near].session
        epoch = session.pipe_epoch

        def notice() -> None:
            is_same = session is self.workers[near].session and session.pipe_epoch == epoch
            is_well = near not in self.killed | self.paused and session.state is StageState.ATTACHED
            if is_same and is_well and (near, far) in self.cut_links and self._next_of(near) == far:
                self._answer(near, session.break_off(epoch, f"the stage at {self.names[far]} is gone"))

        heapq.heappush(self._events, (self.now + SILENCE_S, next(self._numbers), notice))

    def heal_link(self, near: int, far: int) -> None:
        self.cut_links.discard((near, far))
        self._release()

    def _next_of(self, stage: int) -> int | None:
        following = self.workers[stage].session.next
        return self.names.index(self.told_next.get(stage, following)) if following else None

    def _answer_attach(self, stage: int, answer: Attached) -> None:
        following = self._next_of(stage)
        next_id = None if following is None else self.workers[following].session.stage_id
        self._answer(stage, replace(answer, next_id=next_id))

    def _release(self) -> None:
        held, self._held = self._held, []
        for link, arrive in held:
            self._at(link, arrive)

    # ---------------------------------------------------------------- the link

    def control(self, stage: int, message: CoordinatorToStage) -> None:
        frame = encode(message)

        def arrive() -> None:
            answer = self.workers[stage].control(self._to_stage.decode(frame))
            following = self._next_of(stage)
            if isinstance(answer, Attached) and (stage, following) in self.cut_links:
                self._held.append((("answer", stage, following), lambda: self._answer_attach(stage, answer)))
            elif isinstance(answer, Attached):
                self._answer_attach(stage, answer)
            elif answer is not None:
                self._answer(stage, answer)

        self._at(("control", COORDINATOR, stage), arrive)

    def send(self, parts: Sequence[bytes], stage: int = 0, sender: int = COORDINATOR) -> None:
        self.num_bytes += sum(map(len, parts))

        def arrive() -> None:
            if self.lose_next == stage:
                self.lose_next = None
                return
            if (sender, stage) in self.cut_traversals:
                return
            session, following = self.workers[stage].session, self._next_of(stage)
            try:
                answer = self.workers[stage].take(parts)
            except PeerProtocolError:
                return  # as StageServer does
            if isinstance(answer, Frame) and following is not None:
                self.send(answer.parts, following, stage)
            elif isinstance(answer, Frame):  # it was attached by itself, and a traversal from before came late
                self._answer(stage, session.break_off(session.pipe_epoch, "there is no next stage"))
            elif answer is not None:
                self._answer(stage, answer)

        self._at(("traversal", sender, stage), arrive)

    def receive(self, timeout_s: float) -> list[tuple[int, StageToCoordinator]]:
        end_s = self.now + timeout_s
        while not self._answers and self._events and self._events[0][0] <= end_s:
            self._step()
        if not self._answers:
            self.now = max(self.now, end_s)
        answers, self._answers = self._answers, []
        self.check_leases()
        return answers

    def close(self) -> None:
        pass

    def check_leases(self) -> None:
        for stage, worker in enumerate(self.workers):
            if stage not in self.killed | self.paused:
                worker.check_lease()

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
        self._at(("answer", stage, COORDINATOR), lambda: self._answers.append((stage, decoded)))

    def _at(self, link: Link, arrive: Callable[[], None]) -> None:
        def arrive_unless_held() -> None:
            _, sender, receiver = link
            is_cut = (sender, receiver) in self.cut_links or {sender, receiver} & self.cut
            if is_cut or receiver in self.paused:
                self._held.append((link, arrive))
            elif receiver not in self.killed:
                arrive()

        at = max(self.now + self._delay(), self._arrivals.get(link, 0.0))
        self._arrivals[link] = at
        heapq.heappush(self._events, (at, next(self._numbers), arrive_unless_held))
