"""The target as a process: one thread that serves gateways, talks to the hub and runs the engine.

There is one loop and no lock. Between two steps the loop reads messages from gateways. Within a step the engine waits
for the hub, until its deadline at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import assert_never

import structlog

from starspec.audit import AuditLog
from starspec.cache.memory import memory_of
from starspec.config import TargetConfig
from starspec.engine.compiling import Compiled, Compiling
from starspec.engine.endings import INTERNAL_ERROR
from starspec.engine.engine import TargetEngine
from starspec.errors import RETRY_AFTER_S, CapacityError, RequestError, outcome
from starspec.grammars.matcher import GrammarMatcher
from starspec.ids import PeerId, RequestKey, TargetId
from starspec.log_limit import LogLimit
from starspec.wire.messages import (
    Abort,
    Ask,
    EngineOutput,
    GatewayToTarget,
    Rejected,
    Submit,
    TargetStatus,
    TargetToGateway,
)
from starspec.wire.transports.serving_server import ServingServer
from starspec.wire.transports.sockets import endpoint_at

IDLE_WAIT_S = 0.05  # between polls of the hub link while the engine is idle
COMPILING_WAIT_S = 0.001  # the same while grammars are compiled

log = structlog.get_logger()


class TargetServer:
    """Serves one engine to any number of gateways.

    When a gateway has been silent for longer than the lease, its requests are aborted. `stop` drains: requests in
    flight end, and new ones are refused.
    """

    def __init__(
        self,
        config: TargetConfig,
        engine: TargetEngine,
        serving: ServingServer,
        audit: AuditLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._engine = engine
        self._serving = serving
        self._audit = audit or AuditLog.off()
        self._clock = clock
        self._log_limit = LogLimit(clock)
        self._compiling = Compiling(engine.compile, engine.special_tokens)
        self._heard_s: dict[PeerId, float] = {}  # when each gateway with requests sent its last message
        self._is_stopping = threading.Event()
        self._stop_by_s = float("inf")

    @property
    def address(self) -> str:
        """The endpoint of this target, with the port that was really taken."""
        return endpoint_at(self._config.host, self._serving.port)

    @property
    def memory(self) -> str:
        """The memory that sequences take, as text."""
        cache = self._engine.verifier.cache
        return memory_of(cache.num_rows, cache.num_bytes)

    def run(self) -> None:
        """Serve until `stop`, then until the last request has ended or the shutdown timeout is over."""
        try:
            while not self._is_done():
                self._run_once()
        finally:
            self._compiling.close()
            self._engine.drafts.shutdown()
            self._engine.verifier.close()
            self._serving.close()
            self._audit.close()

    def stop(self) -> None:
        """Refuse new requests, and let the others end within `shutdown_timeout_s`. A second call does not wait.

        Callable from a signal handler.
        """
        wait_s = 0.0 if self._is_stopping.is_set() else self._config.shutdown_timeout_s
        self._stop_by_s = self._clock() + wait_s
        self._is_stopping.set()

    def _is_done(self) -> bool:
        has_work = self._engine.has_work or len(self._compiling) > 0
        is_drained = not has_work or self._clock() >= self._stop_by_s
        return self._is_stopping.is_set() and is_drained

    def _run_once(self) -> None:
        """Handle the messages that have arrived, then run one step of the engine."""
        wait_s = COMPILING_WAIT_S if len(self._compiling) else IDLE_WAIT_S
        for peer, message in self._serving.receive(0.0 if self._engine.has_work else wait_s):
            self._handle(peer, message)
        for compiled in self._compiling.take():
            self._submit_compiled(compiled)
        self._expire_gateways()
        if not self._engine.has_work:
            self._engine.keep_links()
            return
        self._deliver(self._step())

    def _step(self) -> Mapping[RequestKey, EngineOutput]:
        """Run one step. If it raises, only the requests of that step fail. No other place catches such errors."""
        outputs = outcome(self._engine.step)
        if isinstance(outputs, BaseException):
            self._log_limit.log(log.error, "a step failed; its requests end with an error", exc_info=outputs)
            return self._engine.fail_step(INTERNAL_ERROR)
        return outputs

    def _handle(self, peer: PeerId, message: GatewayToTarget) -> None:
        if peer in self._heard_s:
            self._heard_s[peer] = self._clock()
        match message:
            case Submit():
                self._submit(peer, message)
            case Abort(request_id=request_id):
                self._compiling.drop(RequestKey(peer, request_id))
                self._engine.abort(request_id, peer)
            case Ask():
                self._serving.send(peer, [self._status()])
            case _:
                assert_never(message)

    def _submit(self, peer: PeerId, message: Submit) -> None:
        self._take_or_refuse(peer, message, partial(self._take, peer, message))

    def _take(self, peer: PeerId, message: Submit) -> None:
        """Raises: whatever is wrong with the request."""
        if self._is_stopping.is_set():
            raise CapacityError("this target is shutting down")
        if message.spec.grammar is None:
            self._add(peer, message, None)
        else:
            self._compile(peer, message)
        self._heard_s[peer] = self._clock()

    def _compile(self, peer: PeerId, message: Submit) -> None:
        """Raises: as Compiling.add. Effects: tells the gateway whose request gives way."""
        late = self._compiling.add(peer, self._serving.owner_of(peer), message)
        if late is not None:
            self._engine.note_rejected()
            self._refuse_late(late, "too many grammars wait to be compiled, and other gateways have fewer of them")

    def _submit_compiled(self, compiled: Compiled) -> None:
        self._take_or_refuse(compiled.peer, compiled.submit, partial(self._take_compiled, compiled))

    def _take_compiled(self, compiled: Compiled) -> None:
        """Raises: whatever is wrong with the request."""
        error = compiled.grammar.exception()
        if error is not None:
            self._engine.note_rejected()
            raise self._complaint_of(error) from error
        self._add(compiled.peer, compiled.submit, compiled.grammar.result())

    def _complaint_of(self, error: BaseException) -> RequestError | CapacityError:
        """What a gateway is told of an error on the thread that compiles. It must not end this one."""
        if isinstance(error, RequestError | CapacityError):
            return error
        self._log_limit.log(log.error, "a grammar was not compiled", exc_info=error)
        return RequestError("the grammar cannot be compiled", "structured_outputs")

    def _add(self, peer: PeerId, message: Submit, grammar: GrammarMatcher | None) -> None:
        """Raises: as TargetEngine.submit. Effects: tells the gateway whose request gives way."""
        owner = self._serving.owner_of(peer)
        late = self._engine.submit(message.request_id, message.spec, peer, owner, grammar)
        if late is not None:
            self._refuse_late(late, "the queue is full, and other gateways have fewer requests in it")
        self._audit.note("request", request_id=message.request_id, num_tokens=len(message.spec.prompt_token_ids))

    def _take_or_refuse(self, peer: PeerId, message: Submit, take: Callable[[], None]) -> None:
        """Take a request, or answer why it cannot run, or not now. Whatever is wrong with it ends no other one."""
        match outcome(take):
            case RequestError() as error:
                self._refuse(peer, Rejected(message.request_id, str(error), error.param, error.status))
            case CapacityError() as error:
                self._refuse(peer, Rejected(message.request_id, str(error), None, 503, error.retry_after_s))
            case BaseException() as error:
                self._log_limit.log(log.error, "a request could not be taken; it ends with an error", exc_info=error)
                self._refuse(peer, Rejected(message.request_id, INTERNAL_ERROR, None, 500))

    def _refuse_late(self, late: RequestKey, why: str) -> None:
        """A request that waited has given way to another one."""
        self._refuse(late.peer, Rejected(late.request_id, f"{why}; try again later", None, 503, RETRY_AFTER_S))

    def _refuse(self, peer: PeerId, refusal: Rejected) -> None:
        self._audit.note("request_refused", request_id=refusal.request_id, status=refusal.status)
        self._serving.send(peer, [refusal])

    def _deliver(self, outputs: Mapping[RequestKey, EngineOutput]) -> None:
        """Send each gateway the outputs of its requests, all at once."""
        by_peer: dict[PeerId, list[TargetToGateway]] = {}
        for key, output in outputs.items():
            by_peer.setdefault(key.peer, []).append(output)
        for peer, messages in by_peer.items():
            if not self._serving.send(peer, messages):
                self._forget(peer)

    def _expire_gateways(self) -> None:
        limit_s = self._clock() - self._config.lease_s
        peers = self._engine.peers | self._compiling.peers
        self._heard_s = {peer: heard_s for peer, heard_s in self._heard_s.items() if peer in peers}
        for peer, heard_s in list(self._heard_s.items()):
            if heard_s < limit_s:
                request_ids = self._engine.requests_of(peer)
                aborted = [EngineOutput(request_id, [], "", finish_reason="abort") for request_id in request_ids]
                self._serving.send(peer, aborted)  # the gateway may be slow rather than gone
                self._forget(peer)

    def _forget(self, peer: PeerId) -> None:
        """A gateway is gone: abort its requests."""
        self._compiling.drop_all(peer)
        for request_id in self._engine.requests_of(peer):
            self._engine.abort(request_id, peer)
        self._heard_s.pop(peer, None)

    def _status(self) -> TargetStatus:
        engine = self._engine
        engine.refresh_rate()
        engine.stats.num_frames_rejected = self._serving.num_frames_rejected
        engine.stats.num_dropped = self._serving.num_dropped
        engine.stats.pipe = engine.verifier.pipe
        return TargetStatus(
            target_id=TargetId(self._config.name),
            model=engine.verifier.info.name,
            max_model_len=engine.verifier.info.max_model_len,
            num_running=engine.num_running,
            num_waiting=engine.num_waiting,
            num_rows=engine.verifier.cache.num_rows,
            num_free_rows=engine.verifier.cache.num_free_rows,
            is_draft_connected=engine.drafts.is_connected,
            stats=engine.stats,
            is_stopping=self._is_stopping.is_set(),
            max_num_requests=engine.max_num_requests,
            hub_state=engine.drafts.hub_state,
            hub_state_s=engine.drafts.hub_state_s,
            has_grammars=engine.has_grammars,
            has_bad_words=True,
            lacks_stages=engine.verifier.refusal is not None,
        )
