"""Which target answers, and whether it still lives.

A `RoutedTarget` is the gateway's view of one target: its link, its last status, the requests that are open there. The
`Router` picks the least loaded one. Nothing here waits for a target: sending never blocks, and a target that is gone
or silent fails the requests that it held, and no others.
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

ASK_INTERVAL_S: Final = 0.5  # between questions for a target's status; each also renews the lease there
SILENCE_S: Final = 30.0  # a connected target that says nothing for so long hangs; one step may take seconds
MISSED_S: Final = 30.0  # a target that does not answer for so long is complained about once; small models load faster
PAUSE_S: Final = 8.0  # this process slept for longer: what targets said of leases that ended may not have come through

log = structlog.get_logger()

Sink = Callable[[EngineOutput | StarspecError], None]
"""Takes what happens to one request; after an error or a finish reason nothing follows."""


class TargetLink(Protocol):
    """One connection to one target; reconnects by itself."""

    @property
    def endpoint(self) -> str:
        """Where the target is, for logs and metrics."""
        ...

    @property
    def is_connected(self) -> bool: ...

    def send(self, message: GatewayToTarget) -> None:
        """Hand a message over without waiting; dropped while not connected."""
        ...

    async def receive(self) -> TargetToGateway:
        """The next message, whenever it comes.

        Raises: PeerLost once each time the connection breaks, after all that had come until then.
        """
        ...

    def close(self) -> None: ...


class RoutedTarget:
    """One target as this gateway sees it."""

    def __init__(self, link: TargetLink, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._open: dict[RequestId, Sink] = {}
        self._num_others = 0  # requests there that are not ours
        self._heard_s = clock()
        self._asked_s = clock()
        self._is_missed = False  # said so already
        self._refusal = ""  # the target's, as it was logged
        self.status: TargetStatus | None = None
        self.last_assigned = 0

    @property
    def endpoint(self) -> str:
        return self._link.endpoint

    @property
    def is_live(self) -> bool:
        """Whether it has told its status and the link stands."""
        return self.status is not None and self._link.is_connected

    @property
    def load(self) -> int:
        """Requests there, running and waiting: ours as of now, the others' as of the last status."""
        return self._num_others + len(self._open)

    @property
    def num_open(self) -> int:
        return len(self._open)

    def submit(self, request_id: RequestId, spec: RequestSpec, sink: Sink) -> None:
        """Start a request; what becomes of it goes to `sink`. Raises: RequestError if it is too large to be sent."""
        self._open[request_id] = sink
        try:
            self._link.send(Submit(request_id, spec))
        except LocalProtocolError as error:
            del self._open[request_id]
            raise RequestError("the request is too large to be passed on to a target", status=413) from error

    def abandon(self, request_id: RequestId) -> None:
        """Nobody waits any more: abort the request if it is still open. Never blocks, never raises."""
        if self._open.pop(request_id, None) is not None:
            self._link.send(Abort(request_id))

    async def listen(self) -> None:
        """Hand out what the target says, for ever."""
        while True:
            try:
                message = await self._link.receive()
            except PeerLost as error:
                self._lose(str(error))
            else:
                self._heard_s = self._clock()
                self._handle(message)

    async def ask(self) -> None:
        """Ask for the status, for ever, and notice silence."""
        while True:
            self.check()
            self._link.send(Ask(PROTOCOL_VERSION))
            await asyncio.sleep(ASK_INTERVAL_S)

    def check(self) -> None:
        """Judge silence, the target's or this process's own."""
        now = self._clock()
        if now - self._asked_s > PAUSE_S:
            self._lose("the gateway was paused for so long that targets may have given its requests up")
        elif self.status is None and not self._is_missed and now - self._heard_s > MISSED_S:
            self._is_missed = True
            why = f"a target has not answered for {MISSED_S:.0f} s: is it started, and are the keys the same?"
            log.warning(why, endpoint=self.endpoint)
        elif self.status is not None and now - self._heard_s > SILENCE_S:
            self._lose(f"target {self.status.target_id} has said nothing for {SILENCE_S:.0f} s")
        self._asked_s = now

    def close(self) -> None:
        """Abort everything that is open and free the link."""
        for request_id in list(self._open):
            self.abandon(request_id)
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
                sink(_broken_off(message) or message)
            case Rejected() | EngineOutput():
                pass  # about a request that was abandoned while this was on its way
            case _:
                assert_never(message)

    def _lose(self, why: str) -> None:
        """Fail every open request; the target is skipped until it tells its status again."""
        if self.status is not None:
            log.warning("target lost", target=self.status.target_id, why=why, num_failed=len(self._open))
        lost, self._open = self._open, {}
        self.status = None
        self._num_others = 0
        for request_id, sink in lost.items():
            self._link.send(Abort(request_id))  # in case it lives after all; dropped while not connected
            sink(PeerLost(f"the target of this request is lost: {why}"))


class Router:
    """All targets of this gateway. Use as an async context manager: its tasks live inside."""

    def __init__(self, links: Sequence[TargetLink], clock: Callable[[], float] = time.monotonic) -> None:
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
        """Of the targets that live; those of one name are told apart by their endpoints."""
        live = [(routed, routed.status) for routed in self.targets if routed.is_live and routed.status is not None]
        num_namesakes = Counter(status.target_id for _, status in live)
        return tuple(
            status if num_namesakes[status.target_id] == 1 else _renamed(status, routed.endpoint)
            for routed, status in live
        )

    @property
    def max_model_len(self) -> int | None:
        """The longest context that a living target has; None if none lives."""
        return max((status.max_model_len for status in self.statuses), default=None)

    @property
    def max_num_requests(self) -> int | None:
        """How many requests all targets together hold at once; None while one of them is away or does not say."""
        statuses = [routed.status for routed in self.targets if routed.is_live]
        known = [each.max_num_requests for each in statuses if each and each.max_num_requests is not None]
        return sum(known) if known and len(known) == len(self.targets) else None

    def pick(self, prompt_len: int) -> RoutedTarget:
        """The least loaded target that takes requests and whose context holds the prompt; of equals, the longest idle.

        Raises: CapacityError if there is none.
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


def _broken_off(output: EngineOutput) -> StarspecError | None:
    """The error that a last emission stands for, if it ended neither by stop nor by length."""
    if output.finish_reason == "abort":
        return CapacityError("the target gave this request up; it may be shutting down")
    if output.finish_reason == "error":
        return OurBug("the target failed on this request; its log says more")
    return None
