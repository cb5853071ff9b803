"""The target as a process: one thread that serves gateways, speaks to the hub and runs the engine.

One loop, no locks: between two steps it reads what gateways sent; within a step the engine itself waits for the
hub, at most until its deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from starspec.cache.memory import memory_of
from starspec.config import TargetConfig
from starspec.engine.engine import TargetEngine
from starspec.errors import CapacityError, RequestError
from starspec.ids import RequestId, TargetId
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
from starspec.wire.serving import ServingServer
from starspec.wire.transports.sockets import endpoint_at

IDLE_WAIT_S = 0.05  # between looks at the hub's link while there is nothing to do

log = structlog.get_logger()


@dataclass(slots=True)
class _Gateway:
    """A gateway that has requests here."""

    heard_s: float
    requests: dict[RequestId, RequestId]  # the gateway's id -> ours


class TargetServer:
    """Serves one engine to any number of gateways.

    A gateway that is silent for longer than the lease has its requests aborted. `stop` drains: requests in
    flight end, new ones are refused.
    """

    def __init__(
        self,
        config: TargetConfig,
        engine: TargetEngine,
        serving: ServingServer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._engine = engine
        self._serving = serving
        self._clock = clock
        self._gateways: dict[bytes, _Gateway] = {}
        self._owners: dict[RequestId, tuple[bytes, RequestId]] = {}  # our id -> (gateway, its id)
        self._num_requests = 0
        self._is_stopping = threading.Event()
        self._stop_by_s = float("inf")

    @property
    def address(self) -> str:
        """Where gateways find this target, with the port that was really taken."""
        return endpoint_at(self._config.host, self._serving.port)

    @property
    def memory(self) -> str:
        """What sequences take, for people."""
        cache = self._engine.runner.cache
        return memory_of(cache.num_rows, cache.num_bytes)

    def run(self) -> None:
        """Serve until `stop`, then until the last request ended or the drain time is over."""
        try:
            while not self._is_done():
                self._turn()
        finally:
            self._engine.drafts.shutdown()
            self._serving.close()

    def stop(self) -> None:
        """Refuse new requests; let those that run end, for `shutdown_timeout_s` at most; asked again, wait no longer.

        Callable from a signal handler.
        """
        wait_s = 0.0 if self._is_stopping.is_set() else self._config.shutdown_timeout_s
        self._stop_by_s = self._clock() + wait_s
        self._is_stopping.set()

    def _is_done(self) -> bool:
        is_drained = not self._engine.has_work or self._clock() >= self._stop_by_s
        return self._is_stopping.is_set() and is_drained

    def _turn(self) -> None:
        """Read what came, then one step of the engine."""
        wait_s = 0.0 if self._engine.has_work else IDLE_WAIT_S
        for peer, message in self._serving.receive(wait_s):
            self._handle(peer, message)
        self._expire_gateways()
        if not self._engine.has_work:
            self._engine.drafts.poll()
            return
        self._deliver(self._step())

    def _step(self) -> Sequence[EngineOutput]:
        """The one place where an exception of a step is survived: those that it worked on fail, the others go on."""
        try:
            return self._engine.step()
        except Exception:
            log.exception("a step failed; its requests end with an error")
            return self._engine.fail_step("internal error")

    def _handle(self, peer: bytes, message: GatewayToTarget) -> None:
        gateway = self._gateways.setdefault(peer, _Gateway(self._clock(), {}))
        gateway.heard_s = self._clock()
        match message:
            case Submit():
                self._submit(peer, gateway, message)
            case Abort(request_id=request_id):
                if request_id in gateway.requests:  # else it crossed the last emission
                    self._drop(gateway.requests[request_id])
            case Ask():
                self._serving.send(peer, [self._status()])
            case _:
                assert_never(message)

    def _submit(self, peer: bytes, gateway: _Gateway, message: Submit) -> None:
        self._num_requests += 1
        request_id = RequestId(f"{self._config.name}-{self._num_requests}")
        try:
            if self._is_stopping.is_set():
                raise CapacityError("this target is shutting down")
            if message.request_id in gateway.requests:
                raise RequestError(f"request id {message.request_id} is in use", "request_id")
            self._engine.submit(request_id, message.spec)
        except RequestError as error:
            refusal = Rejected(message.request_id, str(error), error.param, error.status)
            self._serving.send(peer, [refusal])
        except CapacityError as error:
            refusal = Rejected(message.request_id, str(error), None, 503, error.retry_after_s)
            self._serving.send(peer, [refusal])
        else:
            gateway.requests[message.request_id] = request_id
            self._owners[request_id] = (peer, message.request_id)

    def _drop(self, request_id: RequestId) -> None:
        peer, theirs = self._owners.pop(request_id)
        del self._gateways[peer].requests[theirs]
        self._engine.abort(request_id)

    def _deliver(self, outputs: Sequence[EngineOutput]) -> None:
        """Send each gateway its emissions in one go."""
        by_peer: dict[bytes, list[TargetToGateway]] = {}
        for output in outputs:
            peer, theirs = self._owners[output.request_id]
            by_peer.setdefault(peer, []).append(_renamed(output, theirs))
            if output.finish_reason is not None:
                del self._owners[output.request_id]
                del self._gateways[peer].requests[theirs]
        for peer, messages in by_peer.items():
            if not self._serving.send(peer, messages):
                self._forget(peer)

    def _expire_gateways(self) -> None:
        limit_s = self._clock() - self._config.lease_s
        for peer, gateway in list(self._gateways.items()):
            if gateway.heard_s < limit_s:
                given_up = [EngineOutput(theirs, [], "", finish_reason="abort") for theirs in gateway.requests]
                self._serving.send(peer, given_up)  # it may be there after all, and slow
                self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        """A gateway is gone: abort what it asked for."""
        for request_id in list(self._gateways[peer].requests.values()):
            self._drop(request_id)
        del self._gateways[peer]

    def _status(self) -> TargetStatus:
        engine = self._engine
        engine.refresh_rate()
        engine.stats.num_frames_rejected = self._serving.num_frames_rejected
        engine.stats.num_dropped = self._serving.num_dropped
        return TargetStatus(
            target_id=TargetId(self._config.name),
            model=engine.runner.info.name,
            max_model_len=engine.runner.info.max_model_len,
            num_running=engine.num_running,
            num_waiting=engine.num_waiting,
            num_rows=engine.runner.cache.num_rows,
            num_free_rows=engine.runner.cache.num_free_rows,
            is_draft_connected=engine.drafts.is_connected,
            stats=engine.stats,
            is_stopping=self._is_stopping.is_set(),
            max_num_requests=engine.max_num_requests,
        )


def _renamed(output: EngineOutput, request_id: RequestId) -> EngineOutput:
    return EngineOutput(
        request_id=request_id,
        token_ids=output.token_ids,
        text=output.text,
        logprobs=output.logprobs,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
        stats=output.stats,
    )
