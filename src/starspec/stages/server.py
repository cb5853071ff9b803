"""A stage as a process: one thread that reads its port, computes one traversal at a time, and sends it on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from starspec.audit import AuditLog
from starspec.cache.memory import memory_of
from starspec.config import StageConfig
from starspec.errors import ConfigError, LinkError, PeerLost, PeerProtocolError
from starspec.ids import PeerId
from starspec.log_limit import LogLimit
from starspec.models.runner import Stage
from starspec.stages.frames import Bytes, Frame
from starspec.stages.worker import StageWorker
from starspec.tracing import Tracer
from starspec.wire.codec import Decoder
from starspec.wire.keys import Keys
from starspec.wire.messages import Attach, Attached, CoordinatorToStage, Gap, Landing, Refused, StageToCoordinator
from starspec.wire.stage_session import StageState
from starspec.wire.transports.sockets import GOODBYE_MS, endpoint_at
from starspec.wire.transports.stage_connection import StageConnection
from starspec.wire.transports.stage_port import MAX_HIDDEN_BYTES, StageArrival, StagePort
from starspec.wire.transports.waiting import Waiting

TICK_S: Final = 0.1  # between looks at the lease and the connection to the next stage
MAX_QUEUED: Final = 64  # traversals that were read and are not computed; a coordinator has a few in flight ...
MAX_QUEUED_BYTES: Final = 256 * 2**20  # ... and their bytes, but for the last one

log = structlog.get_logger()


class StageServer:
    """Serves one stage to one coordinator at a time.

    Between two traversals it reads what has arrived, so that windows that need not be computed are dropped.

    Args:
        runner: of the stage's layers.
        port: where coordinator and the stage before connect.
        keys: of role "stage".
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
        self._decoder: Decoder[CoordinatorToStage] = Decoder(CoordinatorToStage)
        self._waiting = Waiting()
        self._waiting.add(lambda: port.sockets)
        self._waiting.add(lambda: [] if self._next is None else self._next.sockets)
        self._log_limit = LogLimit(clock)
        self._coordinator: PeerId | None = None
        self._next: StageConnection | None = None
        self._answer: Attached | None = None  # to be sent when the next stage is connected
        self._queue: deque[Sequence[Bytes]] = deque()  # traversals
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
        try:
            while not self._is_stopping:
                self._turn()
        finally:
            self._unlink()
            self._port.close()
            self._audit.close()

    def stop(self) -> None:
        """End at once: who needs this stage learns it from the connection. Callable from a signal handler."""
        self._is_stopping = True

    def _turn(self) -> None:
        """Take in what has arrived, then compute the oldest traversal."""
        if not self._queue:
            self._waiting.wait(TICK_S)
        for arrival in self._port.receive():
            if arrival.is_traversal:
                self._enqueue(arrival)
            else:
                self._hear(arrival)
        self._worker.check_lease()
        if self._worker.session.state is StageState.DETACHED:
            self._unlink()
        self._check_next()
        if self._queue:
            self._compute(self._queue.popleft())

    # ---------------------------------------------------------------- control

    def _hear(self, arrival: StageArrival) -> None:
        try:
            message = self._decoder.decode(bytes(arrival.frames[0]))
        except PeerProtocolError as error:
            self._log_limit.log(log.warning, "a control message is dropped", why=str(error))
            return
        if isinstance(message, Attach):
            self._attach(arrival, message)
        elif arrival.peer == self._coordinator:
            self._worker.control(message)

    def _attach(self, arrival: StageArrival, message: Attach) -> None:
        following = self._config.next or message.next
        answer = self._why_not(arrival, message) or self._worker.control(message)
        if not isinstance(answer, Attached):
            assert answer is not None
            self._port.send(arrival.peer, answer)
            return
        self._unlink()
        self._queue.clear()
        self._coordinator, self._answer = arrival.peer, answer
        log.info("attached", target=message.target_id, pipe_epoch=answer.pipe_epoch, next=following or None)
        if following and not self._runner.layers.is_last:
            self._link(following)

    def _why_not(self, arrival: StageArrival, message: Attach) -> Refused | None:
        if arrival.caller is not None and arrival.caller.role != "target":
            return Refused("key", f"the key {arrival.caller.key_name}.public is not a target's")
        if (reason := self._port.why_not_named(arrival.caller, message.target_id)) is not None:
            return Refused("key", reason)
        return None

    # ---------------------------------------------------------------- the next stage

    def _link(self, endpoint: str) -> None:
        config = self._config
        try:
            self._next = StageConnection(
                self._port.context, endpoint, self._keys, config.insecure, config.silence_s, "this stage"
            )
        except ConfigError as error:
            self._refuse(str(error))

    def _unlink(self) -> None:
        if self._next is not None:
            self._next.close(GOODBYE_MS)
            self._next = None

    def _check_next(self) -> None:
        """Answer the coordinator once the next stage is connected; tell it when that connection breaks."""
        try:
            if self._next is not None:
                self._next.check()
        except ConfigError as error:
            self._refuse(str(error))
        except PeerLost as error:
            self._break_off(str(error))
        if self._answer is not None and (self._next is None or self._next.is_ready):
            self._tell(self._answer)
            self._answer = None

    def _refuse(self, reason: str) -> None:
        self._unlink()
        self._answer = None
        self._tell(Refused("invalid", reason))

    def _break_off(self, reason: str) -> None:
        self._unlink()
        self._answer = None
        self._queue.clear()
        self._tell(self._worker.session.break_off(self._worker.session.pipe_epoch, reason))

    # ---------------------------------------------------------------- traversals

    def _enqueue(self, arrival: StageArrival) -> None:
        """Let a traversal wait. One that is left out is missed by its number, which breaks the pipe."""
        sender = "target" if self._runner.layers.is_first else "stage"
        is_allowed = arrival.caller is None or arrival.caller.role == sender
        num_bytes = sum(len(part) for frames in self._queue for part in frames)
        if is_allowed and len(self._queue) < MAX_QUEUED and num_bytes < MAX_QUEUED_BYTES:
            self._queue.append(arrival.frames)
        else:
            self._log_limit.log(log.warning, "a traversal is dropped", is_allowed=is_allowed, num=len(self._queue))

    def _compute(self, parts: Sequence[Bytes]) -> None:
        started_s = self._clock()
        try:
            answer = self._worker.take(parts)
        except PeerProtocolError as error:
            self._log_limit.log(log.warning, "what is no traversal is dropped", why=str(error))
            return
        except Exception:
            log.exception("a traversal failed; its pipe breaks")
            self._break_off("a forward failed: the stage's log says why")
            return
        if self._trace is not None:
            self._trace.slice(
                "stage", "traversal", started_s, self._clock(), number=self._worker.session.next_number - 1
            )
        if isinstance(answer, Frame):
            self._pass_on(answer)
        elif answer is not None:
            self._tell(answer)

    def _pass_on(self, frame: Frame) -> None:
        if self._next is None or len(frame.hidden) > MAX_HIDDEN_BYTES:
            problem = "there is no next stage" if self._next is None else f"{len(frame.hidden)} bytes are too many"
            self._break_off(problem)
            return
        try:
            self._next.send(frame.parts)
        except LinkError as error:
            self._break_off(str(error))

    def _tell(self, message: Attached | Refused | Gap | Landing) -> None:
        answer: StageToCoordinator = message
        if self._coordinator is not None and not self._port.send(self._coordinator, answer):
            self._log_limit.log(log.warning, "the coordinator is gone, or does not read")
