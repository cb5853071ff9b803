"""A stage as a process: one thread computes traversals and sends them on, another one reads its port (`inbox.py`)."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from starspec.audit import AuditLog
from starspec.cache.memory import memory_of
from starspec.config import StageConfig
from starspec.errors import ConfigError, LinkError, PeerProtocolError
from starspec.ids import PeerId, TargetId
from starspec.log_limit import LogLimit
from starspec.models.runner import Stage
from starspec.policy.peer_limits import Allowance
from starspec.stages.frames import Frame
from starspec.stages.inbox import Control, StageInbox
from starspec.stages.worker import StageWorker
from starspec.tracing import Tracer, flow_id
from starspec.wire.codec import MAX_TRAVERSAL_BYTES, size_of
from starspec.wire.keys import Keys
from starspec.wire.messages import Alive, Attach, Attached, Beat, Gap, Landing, Refused
from starspec.wire.stage_session import NOT_IN_PIPE, StageState, highest_epoch
from starspec.wire.transports.next_stage import NextStage
from starspec.wire.transports.sockets import GOODBYE_MS, endpoint_at
from starspec.wire.transports.stage_port import MAX_HIDDEN_BYTES, StageArrival, StagePort

TICK_S: Final = 0.1  # between looks at the lease and the connection to the next stage
MAX_LEASE_S: Final = 60.0  # whatever a coordinator asks for: one that vanishes must not keep the stage
LINKING_TICK_S: Final = 0.01  # the same while that connection is being made
MAX_LANDING_BYTES: Final = MAX_TRAVERSAL_BYTES
ATTACHES_PER_S: Final = 10.0  # each opens connections to the next stage
ATTACHES_BURST: Final = 40.0

log = structlog.get_logger()


class StageServer:
    """Serves one stage to one coordinator at a time.

    Between two traversals it takes in what has arrived, so that windows that need not be computed are dropped.

    Args:
        runner: of the stage's layers.
        port: where coordinator and the stage before connect.
        keys: of role "stage".
        audit: gets who attaches, who leaves, and who is refused; `run` closes it.
        is_invariant: as for StageWorker.
        trace: records what is computed when, if given.
    """

    def __init__(
        self,
        config: StageConfig,
        runner: Stage,
        port: StagePort,
        keys: Keys | None,
        audit: AuditLog,
        *,
        is_invariant: bool = False,
        trace: Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._runner = runner
        self._port = port
        self._keys = keys
        self._audit = audit
        self._clock = clock
        self._trace = trace
        self._worker = StageWorker(runner, clock, is_invariant=is_invariant)
        sender = "target" if runner.layers.is_first else "stage"
        self._inbox = StageInbox(port, self._worker.session.stage_id, sender, self._answer_beat, clock, audit)
        self._log_limit = LogLimit(clock)
        self._coordinator: PeerId | None = None
        self._audited: TargetId | None = None  # the target that the audit log knows as attached
        self._before: PeerId | None = None  # whose traversals are computed; None = none was yet in this pipe epoch
        self._attaches = Allowance(ATTACHES_PER_S, ATTACHES_BURST)
        self._next: NextStage | None = None
        self._answer: Attached | None = None  # to be sent when the next stage has said who it is
        self._queues: OrderedDict[PeerId, deque[StageArrival]] = OrderedDict()  # traversals by sender; they take turns
        self._is_computing = False
        self._num_moves = 0  # of the port, at the coordinator's last beat
        self._is_stopping = False

    @property
    def address(self) -> str:
        """The endpoint of this stage, with the port that was really taken."""
        return endpoint_at(self._config.host, self._port.port)

    @property
    def memory(self) -> str:
        """The memory that its weights and rows take, as text."""
        cache = self._runner.cache
        weights = f"{self._runner.info.num_weight_bytes / 2**20:.0f} MiB of weights"
        return f"layers {self._runner.layers}, {weights}, {memory_of(cache.num_rows, cache.num_bytes)}"

    def run(self) -> None:
        """Serve until `stop`."""
        self._inbox.start()
        try:
            while not self._is_stopping:
                self._turn()
        finally:
            self._unlink()
            self._inbox.end()
            self._inbox.join()
            self._note_end("the stage ends")
            self._audit.close()

    def stop(self) -> None:
        """End at once: who needs this stage learns it from the connection. Callable from a signal handler."""
        self._is_stopping = True

    def _turn(self) -> None:
        """Take in what has arrived, then compute the oldest traversal."""
        wait_s = TICK_S if self._answer is None else LINKING_TICK_S
        for arrival in self._inbox.take(0.0 if self._queues else wait_s):
            if isinstance(arrival, Control):
                self._hear(arrival)
            elif self._is_of_pipe(arrival):
                self._queues.setdefault(arrival.peer, deque()).append(arrival)
            else:
                self._inbox.done(arrival)
                self._log_limit.log(log.warning, "a traversal is dropped", why="another one leads this stage")
        self._worker.check_lease()
        if self._worker.session.state is StageState.DETACHED:
            self._unlink()
            self._note_end("it has left, or its lease ran out")
        self._check_next()
        if self._queues:
            self._compute(self._next_in_turn())

    # ---------------------------------------------------------------- control

    def _answer_beat(self, sender: PeerId, beat: Beat) -> Alive | Gap:
        """On the inbox's thread."""
        session = self._worker.session
        if sender != self._coordinator:
            is_taken = session.state is StageState.ATTACHED and beat.pipe_epoch < session.pipe_epoch
            why = f": a process called {session.owner} has attached it since" if is_taken else ""
            return Gap(beat.pipe_epoch, session.next_number, NOT_IN_PIPE + why)
        before, self._num_moves = self._num_moves, self._port.num_moves
        is_busy = self._is_computing or self._num_moves > before  # hidden states arrive, perhaps over a slow link
        return session.answer(beat, self._clock(), is_busy=is_busy)

    def _hear(self, arrival: Control) -> None:
        if isinstance(arrival.message, Attach):
            self._attach(arrival, arrival.message)
        elif arrival.peer == self._coordinator:
            self._worker.control(arrival.message)

    def _attach(self, arrival: Control, message: Attach) -> None:
        message = msgspec.structs.replace(message, lease_s=min(message.lease_s, MAX_LEASE_S))
        answer = self._why_not(arrival, message) or self._worker.control(message)
        key = None if arrival.caller is None else arrival.caller.key_name
        if not isinstance(answer, Attached):
            assert answer is not None
            if isinstance(answer, Refused):
                told = {"target": message.target_id, "code": answer.code, "why": answer.reason}
                self._audit.note("refused", key=key, **told)
            self._inbox.tell(arrival.peer, answer)
            return
        self._note_end("it was attached anew")
        self._audited = message.target_id
        self._audit.note("target_attached", key=key, target=message.target_id, pipe_epoch=answer.pipe_epoch)
        self._attaches.take(1.0, self._clock())
        self._unlink()
        self._drop_all()
        self._coordinator, self._before, self._answer = arrival.peer, None, answer
        following = self._config.next or message.next
        self._log_limit.log(
            log.info, "attached", target=message.target_id, pipe_epoch=answer.pipe_epoch, next=following or None
        )
        if following and not self._runner.layers.is_last:
            self._link(following)

    def _note_end(self, why: str) -> None:
        """The pipe that the audit log knows has ended. Idempotent."""
        if self._audited is not None:
            self._audit.note("target_left", target=self._audited, why=why)
            self._audited = None

    def _why_not(self, arrival: Control, message: Attach) -> Refused | None:
        if arrival.caller is not None and arrival.caller.role != "target":
            return Refused("key", f"the key {arrival.caller.key_name}.public is not a target's")
        if (reason := self._port.why_not_named(arrival.caller, message.target_id)) is not None:
            return Refused("key", reason)
        if message.pipe_epoch > highest_epoch(time.time()):
            return Refused("invalid", f"pipe epoch {message.pipe_epoch} is too high for this machine's clock", 1.0)
        if not self._attaches.has_units(self._clock()):
            return Refused("full", "the stage was attached too often of late", 1.0 / ATTACHES_PER_S)
        return None

    # ---------------------------------------------------------------- the next stage

    def _link(self, endpoint: str) -> None:
        config = self._config
        try:
            self._next = NextStage(self._port.context, endpoint, self._keys, config.insecure, config.silence_s)
        except ConfigError as error:
            self._refuse(str(error))

    def _unlink(self) -> None:
        """Leave the next stage, and an answer that waits for it unsaid."""
        self._answer = None
        if self._next is not None:
            self._next.close(GOODBYE_MS)
            self._next = None

    def _check_next(self) -> None:
        """Tell the coordinator who the next stage is once that one says it, and when the connection to it breaks."""
        try:
            if self._next is not None:
                self._next.check()
        except ConfigError as error:
            self._refuse(str(error))
        if self._next is not None and self._next.has_broken:
            self._break_off(f"the stage at {self._next.endpoint} is gone")
        next_id = None if self._next is None else self._next.stage_id
        if self._answer is not None and (self._next is None or next_id is not None):
            self._tell(msgspec.structs.replace(self._answer, next_id=next_id))
            self._answer = None

    def _refuse(self, reason: str) -> None:
        self._unlink()
        self._tell(Refused("invalid", reason))

    def _break_off(self, reason: str) -> None:
        self._unlink()
        self._drop_all()
        self._tell(self._worker.session.break_off(self._worker.session.pipe_epoch, reason))

    # ---------------------------------------------------------------- traversals

    def _is_of_pipe(self, arrival: StageArrival) -> bool:
        """Whether a traversal may come from there, as far as is known: others must not break the pipe."""
        if self._runner.layers.is_first:
            return arrival.peer == self._coordinator
        return self._before in (None, arrival.peer)

    def _next_in_turn(self) -> StageArrival:
        """The next traversal. Senders take turns, so one that sends many delays each of another one's by one only."""
        peer, waiting = self._queues.popitem(last=False)
        arrival = waiting.popleft()
        if waiting:
            self._queues[peer] = waiting
        self._inbox.done(arrival)
        return arrival

    def _drop_all(self) -> None:
        while self._queues:
            self._next_in_turn()

    def _compute(self, arrival: StageArrival) -> None:
        started_s, self._is_computing = self._clock(), True
        try:
            answer = self._worker.take(arrival.frames, max(0.0, started_s - arrival.arrived_s))
        except PeerProtocolError as error:
            self._log_limit.log(log.warning, "a message that is not a traversal is dropped", why=str(error))
            return
        except Exception:
            self._log_limit.log(log.exception, "a traversal failed; its pipe breaks")
            self._break_off("a forward failed: the stage's log says why")
            return
        finally:
            self._is_computing = False
        for failure in self._worker.take_failures():
            event = "a window could not be judged; its request ends with an error, and the others go on"
            self._log_limit.log(log.error, event, exc_info=failure)
        if self._trace is not None:
            session = self._worker.session
            number = session.next_number - 1
            flow = flow_id(session.owner, session.pipe_epoch, number)
            self._trace.slice("stage", "traversal", started_s, self._clock(), flow=flow, number=number)
        if isinstance(answer, Frame | Landing):
            self._before = arrival.peer
        if isinstance(answer, Frame):
            self._pass_on(answer)
        elif isinstance(answer, Landing) and size_of(answer) > MAX_LANDING_BYTES:
            self._break_off(f"verdicts of {size_of(answer)} bytes are more than a target takes")
        elif answer is not None:
            self._tell(answer)

    def _pass_on(self, frame: Frame) -> None:
        """Send hidden states to the next stage. What cannot be sent would be missed there: the pipe breaks."""
        if len(frame.hidden) > MAX_HIDDEN_BYTES:
            self._break_off(f"hidden states of {len(frame.hidden)} bytes are more than a stage takes")
            return
        try:
            is_sent = self._next is not None and self._next.send(frame.parts)
        except LinkError as error:  # the traversal is too large
            self._break_off(str(error))
            return
        if not is_sent:
            self._break_off("the next stage does not take what it is sent")

    def _tell(self, message: Attached | Refused | Gap | Landing) -> None:
        if self._coordinator is not None:
            self._inbox.tell(self._coordinator, message)
