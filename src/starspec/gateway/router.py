"""Chooses a target for each request, and notices when a target is lost.

A `RoutedTarget` is the gateway's view of one target: its link, its last status and its open requests. The `Router`
picks the least loaded target. Nothing here waits for a target: sending never blocks. When a target is gone or silent,
its own requests fail and no others.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Protocol, Self, assert_never

import msgspec
import structlog

from starspec.errors import CapacityError, LocalProtocolError, OurBug, PeerLost, RequestError, StarspecError
from starspec.gateway.background import run_forever
from starspec.ids import RequestId, TargetId
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Ask,
    EngineOutput,
    GatewayToTarget,
    Refused,
    Rejected,
    RequestSpec,
    Submit,
    TargetStatus,
    TargetToGateway,
)

ASK_INTERVAL_S: Final = 0.5  # between two Asks for a target's status; each also renews the lease
SILENCE_S: Final = 30.0  # a connected target that sends nothing for so long hangs; one step may take seconds
MISSED_S: Final = 30.0  # log a warning if a target has not answered for so long; small models load faster
PAUSE_S: Final = 8.0  # if this process was suspended for longer, targets may have ended its leases

log = structlog.get_logger()

Sink = Callable[[EngineOutput | StarspecError], None]
"""Receives the outputs of one request. Nothing follows an error or an output with a finish reason."""


class ServingLink(Protocol):
    """One connection to one target. It reconnects by itself."""

    @property
    def endpoint(self) -> str:
        """Where the target is, for logs and metrics."""
        ...

    @property
    def is_connected(self) -> bool: ...

    def send(self, message: GatewayToTarget) -> None:
        """Send a message without waiting. It is dropped while not connected."""
        ...

    async def receive(self) -> TargetToGateway:
        """Wait for the next message.

        Raises: PeerLost once each time the connection breaks, after the messages that arrived before.
        """
        ...

    def close(self) -> None: ...


class RoutedTarget:
    """One target as this gateway sees it."""

    def __init__(self, link: ServingLink, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._open: dict[RequestId, Sink] = {}
        self._num_others = 0  # requests of other gateways at the target
        self._heard_s = clock()
        self._asked_s = clock()
        self._is_missed = False  # logged that it has not answered
        self._refusal = ""  # the last reason for a refusal that was logged
        self.status: TargetStatus | None = None
        self.last_assigned = 0

    @property
    def endpoint(self) -> str:
        return self._link.endpoint

    @property
    def is_live(self) -> bool:
        """Whether the link is connected and the target has sent its status."""
        return self.status is not None and self._link.is_connected

    @property
    def load(self) -> int:
        """Requests at the target: this gateway's as of now, those of others as of the last status."""
        return self._num_others + len(self._open)

    @property
    def num_open(self) -> int:
        return len(self._open)

    def submit(self, request_id: RequestId, spec: RequestSpec, sink: Sink) -> None:
        """Start a request, whose outputs go to `sink`. Raises: RequestError if it is too large for a message."""
        self._open[request_id] = sink
        try:
            self._link.send(Submit(request_id, spec))
        except LocalProtocolError as error:
            del self._open[request_id]
            raise RequestError("the request is too large to be passed on to a target", status=413) from error

    def abort(self, request_id: RequestId) -> None:
        """Abort the request if it is still open. Never blocks, never raises."""
        if self._open.pop(request_id, None) is not None:
            self._link.send(Abort(request_id))

    async def listen(self) -> None:
        """Receive the target's messages until cancelled."""
        while True:
            try:
                message = await self._link.receive()
            except PeerLost as error:
                self._lose(str(error))
            else:
                self._heard_s = self._clock()
                self._handle(message)

    async def ask(self) -> None:
        """Ask for the status, and notice silence, until cancelled."""
        while True:
            self.check()
            self._link.send(Ask(PROTOCOL_VERSION))
            await asyncio.sleep(ASK_INTERVAL_S)

    def check(self) -> None:
        """Fail the open requests if the target was silent, or this process suspended, for too long."""
        now = self._clock()
        if now - self._asked_s > PAUSE_S:
            self._lose("the gateway was suspended for so long that targets may have aborted its requests")
        elif self.status is None and not self._is_missed and now - self._heard_s > MISSED_S:
            self._is_missed = True
            why = f"a target has not answered for {MISSED_S:.0f} s: is it started, and are the keys the same?"
            log.warning(why, endpoint=self.endpoint)
        elif self.status is not None and now - self._heard_s > SILENCE_S:
            self._lose(f"target {self.status.target_id} has sent nothing for {SILENCE_S:.0f} s")
        self._asked_s = now

    def close(self) -> None:
        """Abort the open requests and close the link."""
        for request_id in list(self._open):
            self.abort(request_id)
        self._link.close()

    def _handle(self, message: TargetToGateway) -> None:
        match message:
            case TargetStatus():
                self._is_missed, self._refusal = False, ""
                if self.status is None:
                    log.info("target connected", target=message.target_id, endpoint=self.endpoint)
                self.status = message
                self._num_others = max(0, message.num_running + message.num_waiting - len(self._open))
            case Refused(reason=reason):
                if reason != self._refusal:
                    log.warning("a target refuses this gateway", endpoint=self.endpoint, why=reason)
                self._refusal = reason
            case Rejected(request_id=request_id) if request_id in self._open:
                self._open.pop(request_id)(_refusal(message))
            case EngineOutput(request_id=request_id) if request_id in self._open:
                is_last = message.finish_reason is not None
                sink = self._open.pop(request_id) if is_last else self._open[request_id]
                sink(_error_of(message) or message)
            case Rejected() | EngineOutput():
                pass  # of a request that was aborted meanwhile
            case _:
                assert_never(message)

    def _lose(self, why: str) -> None:
        """Fail every open request. The target gets no requests until it sends its status again."""
        if self.status is not None:
            log.warning("target lost", target=self.status.target_id, why=why, num_failed=len(self._open))
        lost, self._open = self._open, {}
        self.status = None
        self._num_others = 0
        for request_id, sink in lost.items():
            self._link.send(Abort(request_id))  # in case it is alive after all; dropped while not connected
            sink(PeerLost(f"the target of this request is lost: {why}"))


class Router:
    """All targets of this gateway. An async context manager, which runs the tasks of the targets."""

    def __init__(self, links: Sequence[ServingLink], clock: Callable[[], float] = time.monotonic) -> None:
        self.targets = tuple(RoutedTarget(link, clock) for link in links)
        self._num_assigned = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for routed in self.targets:
            self._tasks += [asyncio.create_task(run_forever(run)) for run in (routed.listen, routed.ask)]
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
    def max_model_len(self) -> int | None:
        """The longest context of a live target; None if there is none."""
        return max((status.max_model_len for status in self.statuses), default=None)

    @property
    def max_num_requests(self) -> int | None:
        """Requests that all targets together hold at most; None while one of them is not live or does not report it."""
        statuses = [routed.status for routed in self.targets if routed.is_live]
        known = [each.max_num_requests for each in statuses if each and each.max_num_requests is not None]
        return sum(known) if known and len(known) == len(self.targets) else None

    def pick(self, prompt_len: int) -> RoutedTarget:
        """The least loaded target that accepts the prompt; of equals, the one that was picked longest ago.

        Raises: CapacityError if no target is live, accepts requests and has a context that is long enough.
        """
        fit = [routed for routed in self.targets if routed.is_live and _takes(routed, prompt_len)]
        if not fit:
            raise CapacityError("no target is connected that could take this request")
        routed = min(fit, key=lambda each: (each.load, each.last_assigned))
        self._num_assigned += 1
        routed.last_assigned = self._num_assigned
        return routed


def _renamed(status: TargetStatus, endpoint: str) -> TargetStatus:
    return msgspec.structs.replace(status, target_id=TargetId(f"{status.target_id} at {endpoint}"))


def _takes(routed: RoutedTarget, prompt_len: int) -> bool:
    status = routed.status
    return status is not None and not status.is_stopping and prompt_len < status.max_model_len


def _refusal(rejected: Rejected) -> StarspecError:
    is_capacity = rejected.status == 429 or rejected.status >= 500
    if is_capacity:
        return CapacityError(rejected.message, rejected.retry_after_s or 1.0)
    return RequestError(rejected.message, rejected.param, rejected.status)


def _error_of(output: EngineOutput) -> StarspecError | None:
    """The error for a last output that ended neither by stop nor by length."""
    if output.finish_reason == "abort":
        return CapacityError("the target aborted this request; it may be shutting down")
    if output.finish_reason == "error":
        return OurBug("the target failed on this request; its log says more")
    return None
