"""One target as a gateway sees it: whether it can answer, and the requests that it has from this gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol, assert_never

import structlog

from starspec.audit import AuditLog
from starspec.errors import LocalProtocolError, PeerLost, PeerProtocolError, RequestError
from starspec.gateway.background import Pace
from starspec.gateway.open_request import OpenRequest, Sink, error_of, fail_all, num_positions, refusal_of
from starspec.ids import RequestId, TargetId
from starspec.log_limit import LogLimit
from starspec.policy.routing import TargetSnapshot
from starspec.policy.target_health import (
    SILENCE_S,
    UNREACHED_S,
    TargetHealth,
    TargetVitals,
    Trouble,
    leaves_silent_target,
)
from starspec.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Ask,
    EngineOutput,
    GatewayToTarget,
    HubStatus,
    Refused,
    Rejected,
    RequestSpec,
    Submit,
    TargetStatus,
)
from starspec.wire.serving_news import FromTarget, Unreadable

ASK_INTERVAL_S: Final = 0.5  # between two Asks for a target's status; each also renews the lease

log = structlog.get_logger()


class ServingLink(Protocol):
    """One connection to one target. It reconnects by itself."""

    @property
    def endpoint(self) -> str:
        """Where the target is, for logs and metrics."""
        ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def is_answering(self) -> bool:
        """Whether the target's process runs, as far as the last second shows. A long computation does not hide it."""
        ...

    def send(self, message: GatewayToTarget) -> None:
        """Send a message without waiting. It is dropped while not connected."""
        ...

    async def receive(self) -> FromTarget:
        """Wait for the next message.

        Raises: PeerLost once each time the connection breaks, after the messages that arrived before.
        """
        ...

    def close(self) -> None: ...


class RoutedTarget:
    """One target as this gateway sees it."""

    def __init__(
        self, link: ServingLink, clock: Callable[[], float] = time.monotonic, audit: AuditLog | None = None
    ) -> None:
        self._link = link
        self._audit = audit or AuditLog.off()
        self._clock = clock
        self._log_limit = LogLimit(clock)  # a target can cause every line here at will
        self._open: dict[RequestId, OpenRequest] = {}
        self._num_others = 0  # requests of other gateways at the target
        self._vitals = TargetVitals(clock())
        self._refusal = ""  # the last reason for a refusal that was logged
        self._noted_state, self._state_since_s = TargetHealth.UNREACHABLE, clock()
        self.status: TargetStatus | None = None
        self.name: TargetId | None = None  # as it said last; None: it has never told its status
        self.model: str | None = None  # likewise, the model that it serves
        self._last_assigned = 0
        self.num_broken_answers = 0  # that were no answers to what was asked, and ended their requests

    @property
    def endpoint(self) -> str:
        return self._link.endpoint

    @property
    def state(self) -> TargetHealth:
        return self._vitals.health(
            is_connected=self._link.is_connected,
            is_answering=self._link.is_answering,
            is_refusing=bool(self._refusal),
            is_known=self.status is not None and not self.status.lacks_stages,
            is_stopping=self.status is not None and self.status.is_stopping,
        )

    @property
    def state_s(self) -> float:
        """Seconds in the present state."""
        self._note_state()
        return self._clock() - self._state_since_s

    @property
    def can_answer(self) -> bool:
        """Whether it may get requests now."""
        return self.state is TargetHealth.READY

    def snapshot(self) -> TargetSnapshot:
        """What the choice of a target needs to know about it now."""
        max_model_len = self.status.max_model_len if self.can_answer and self.status is not None else 0
        return TargetSnapshot(max_model_len, self._vitals.silence_s(self._clock()), self.load, self._last_assigned)

    def note_assigned(self, number: int) -> None:
        """It was chosen for a request. Args: number: of the request; a later request has a higher one."""
        self._last_assigned = number

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

    @property
    def num_waiting(self) -> int:
        """Requests in its queue: as of the last status, or more if more have been sent since; 0 if it is not live."""
        if self.status is None or not self.is_live:
            return 0
        return max(self.status.num_waiting, self.load - self.status.num_rows)

    def submit(self, request_id: RequestId, spec: RequestSpec, sink: Sink) -> None:
        """Start a request, whose outputs go to `sink`. Raises: RequestError if it is too large for a message."""
        self._open[request_id] = OpenRequest(spec, sink)
        try:
            self._link.send(Submit(request_id, spec))
        except LocalProtocolError as error:
            del self._open[request_id]
            raise RequestError("the request is too large to be passed on to a target", status=413) from error

    def abort(self, request_id: RequestId) -> None:
        """Abort the request if it is still open. Never blocks, never raises."""
        if self._open.pop(request_id, None) is not None:
            self._link.send(Abort(request_id))

    def release(self, can_move: Callable[[int], bool]) -> None:
        """The target is silent: fail the requests without output that another target takes, and keep the others.

        Args:
            can_move: whether another target takes a request of that many positions.
        """
        leaving = {
            request_id: each
            for request_id, each in self._open.items()
            if leaves_silent_target(num_positions(each.spec), has_begun=each.has_begun, can_move=can_move)
        }
        for request_id in leaving:
            self.abort(request_id)
        fail_all(leaving.values(), f"the target at {self.endpoint} does not answer")

    async def listen(self) -> None:
        """Receive the target's messages until cancelled. Other tasks get their turn, however many messages wait."""
        pace = Pace()
        while True:
            await pace.step()
            try:
                message = await self._link.receive()
            except PeerLost as error:
                self._vitals.note_break()
                self._refusal = ""  # of the old connection
                self._lose(str(error))
            else:
                self._vitals.hear(self._clock())
                self._handle(message)

    async def ask(self) -> None:
        """Ask for the status, and notice silence, until cancelled."""
        while True:
            self.check()
            self._link.send(Ask(PROTOCOL_VERSION))
            await asyncio.sleep(ASK_INTERVAL_S)

    def check(self) -> None:
        """Fail the open requests if the target was silent, or this process suspended, for too long."""
        self._note_state()
        unreachable_s = self.state_s if self.state is TargetHealth.UNREACHABLE else 0.0
        match self._vitals.look(self._clock(), unreachable_s=unreachable_s, is_known=self.status is not None):
            case Trouble.SUSPENDED:
                self._lose("the gateway was suspended for so long that targets may have aborted its requests")
            case Trouble.UNREACHED:
                why = (
                    f"a target could not be reached for {UNREACHED_S:.0f} s: is it started, and are the keys the same?"
                )
                log.warning(why, endpoint=self.endpoint)
            case Trouble.STUCK:
                self._lose(f"target {self.name} has sent nothing for {SILENCE_S:.0f} s")

    def close(self) -> None:
        """Abort the open requests and close the link."""
        for request_id in list(self._open):
            self.abort(request_id)
        self._link.close()

    def _handle(self, message: FromTarget) -> None:
        match message:
            case TargetStatus():
                self._vitals.note_status()
                self._refusal = ""
                if self.status is None:
                    self._log(log.info, "target connected", target=message.target_id)
                    self._audit.note("target_connected", target=message.target_id, endpoint=self.endpoint)
                self.status, self.name, self.model = message, message.target_id, message.model
                self._num_others = max(0, message.num_running + message.num_waiting - len(self._open))
            case Refused(reason=reason):
                self._note_refusal(reason)
            case HubStatus():
                self._note_refusal("a hub listens at this address, and no target")
            case Rejected(request_id=request_id) if request_id in self._open:
                self._open.pop(request_id).sink(refusal_of(message))
            case EngineOutput(request_id=request_id) if request_id in self._open:
                self._take(request_id, message)
            case Unreadable(request_id=request_id) if request_id in self._open:
                self._break_off(request_id, "the target answered what cannot be read")
            case Rejected() | EngineOutput() | Unreadable():
                pass  # of a request that was aborted meanwhile
            case _:
                assert_never(message)

    def _take(self, request_id: RequestId, output: EngineOutput) -> None:
        request = self._open[request_id]
        if not request.take(output):
            self._break_off(request_id, "the target answered more than it was asked for")
            return
        if output.finish_reason is not None:
            del self._open[request_id]
        request.sink(error_of(output) or output)

    def _break_off(self, request_id: RequestId, why: str) -> None:
        """End a request whose answer makes no sense."""
        request = self._open[request_id]
        self.num_broken_answers += 1
        self._log(log.warning, "a target's answer is given up", target=self.name, why=why)
        self._audit.note("answer_given_up", target=self.name, endpoint=self.endpoint, why=why)
        self.abort(request_id)
        request.sink(PeerProtocolError(why))

    def _note_refusal(self, why: str) -> None:
        if why != self._refusal:
            self._log(log.warning, "a target refuses this gateway", why=why)
            self._audit.note("refused_by_target", endpoint=self.endpoint, why=why)
        self._refusal = why

    def _lose(self, why: str) -> None:
        """Fail every open request. The target gets no requests until it sends its status again."""
        if self.status is not None:
            self._log(log.warning, "target lost", target=self.status.target_id, why=why, num_failed=len(self._open))
            self._audit.note("target_lost", target=self.status.target_id, endpoint=self.endpoint, why=why)
        lost, self._open = self._open, {}
        self.status = None
        self._num_others = 0
        for request_id in lost:
            self._link.send(Abort(request_id))  # in case it is alive after all; dropped while not connected
        fail_all(lost.values(), f"the target of this request is lost: {why}")

    def _note_state(self) -> None:
        """Note since when the target is in its state, and log when it falls silent and when it answers again."""
        state, before = self.state, self._noted_state
        if state is before:
            return
        self._noted_state, self._state_since_s = state, self._clock()
        if state is TargetHealth.SILENT:
            event = "a target does not answer: it gets no requests until it does"
            self._log(log.warning, event, target=self.name)
        elif before is TargetHealth.SILENT and state is not TargetHealth.UNREACHABLE:
            self._log(log.warning, "a target answers again", target=self.name, state=str(state))

    def _log(self, write: Callable[..., object], event: str, **fields: int | str | None) -> None:
        self._log_limit.log(write, event, kind=None, endpoint=self.endpoint, **fields)
