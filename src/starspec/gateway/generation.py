"""The answers of one HTTP request while they are generated. None of them outlives its client."""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

import structlog

from starspec.errors import RequestError, StarspecError
from starspec.gateway.background import Pace
from starspec.gateway.generation_request import GenerationRequest
from starspec.gateway.open_request import num_positions
from starspec.gateway.routed_target import RoutedTarget
from starspec.gateway.target_set import TargetSet
from starspec.ids import RequestId
from starspec.policy.routing import may_move
from starspec.wire.messages import EngineOutput

log = structlog.get_logger()


class Progress(NamedTuple):
    """What one round added to one answer."""

    choice: int
    output: EngineOutput
    starts_anew: bool = False  # another target has begun: what came before of this answer is void


class Generation:
    """An async context manager that submits every answer on entry, and aborts unfinished ones on exit.

    An answer whose target is lost goes to another target, if its client has seen nothing of it. That target generates
    the same tokens, since the seed is part of the spec.

    The internal queue is bounded by the lengths of the answers, which the targets' contexts bound.
    """

    def __init__(self, targets: TargetSet, request: GenerationRequest, reply_id: str) -> None:
        self._targets = targets
        self._request = request
        self._reply_id = reply_id
        self._placed: dict[int, tuple[RoutedTarget, RequestId]] = {}  # by choice: where it is now
        self._num_targets = [0] * len(request.specs)  # that each answer was sent to
        self._begun: set[int] = set()  # the present target has sent an output
        self._void: set[int] = set()  # outputs came from an earlier target, and none yet from the present one
        self._events: asyncio.Queue[Progress | StarspecError] = asyncio.Queue()
        self.num_unfinished = len(request.specs)  # answers whose end `next` has not returned
        self._is_over = False  # nobody waits for the answers any more
        self._pace = Pace()

    async def __aenter__(self) -> Self:
        """Submit every answer, a few in each turn of the event loop.

        Raises: CapacityError if no target can take an answer; those already submitted are aborted. RequestError if
            there are more answers than the targets could ever hold.
        """
        self._check_size()
        self._check_targets()
        try:
            for choice in range(len(self._request.specs)):
                self._place(choice)
                await self._pace.step()
        except BaseException:  # it may be cancelled, too
            await self._abort_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._abort_all()

    @property
    def is_finished(self) -> bool:
        return self.num_unfinished == 0

    @property
    def target(self) -> RoutedTarget:
        """The target of the first answer."""
        return self._placed[0][0]

    async def next(self, timeout_s: float | None = None) -> Progress | None:
        """The next progress of any answer; None if `timeout_s` passes without one.

        Raises: StarspecError if an answer was refused or aborted; the whole request has failed then.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._pace.step()  # before an event is in hand, which the timeout would lose
                event = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(event, RequestError) and event.param == "prompt":
            raise RequestError(str(event), self._request.prompt_param, event.status)
        if isinstance(event, StarspecError):
            raise event
        if event.output.finish_reason is not None:
            self.num_unfinished -= 1
        return event

    def _check_size(self) -> None:
        num_answers, most = len(self._request.specs), self._targets.max_num_requests
        if most is not None and num_answers > most:
            param = "n" if self._request.num_prompts == 1 else self._request.prompt_param
            raise RequestError(
                f"{param}: the request is for {num_answers} answers, more than the {most} that the targets hold "
                "at once, running and waiting: ask for fewer at a time",
                param,
            )

    def _check_targets(self) -> None:
        """An old target would ignore what it does not know."""
        spec = self._request.specs[0]
        if spec.sampling.bad_words and not self._targets.has_bad_words:
            raise RequestError("bad_words: a target of this server is too old to keep them out", "bad_words")
        if spec.grammar is not None and not self._targets.has_grammars:
            raise RequestError(
                "structured_outputs: a target of this server cannot hold answers to a grammar, since its model is in"
                " stages or its version is old",
                "structured_outputs",
            )

    def _place(self, choice: int, but_not: RoutedTarget | None = None) -> None:
        """Send the answer to the best target but one. Raises: as `__aenter__`."""
        spec = self._request.specs[choice]
        routed = self._targets.pick(num_positions(spec), but_not)
        self._num_targets[choice] += 1
        turn = self._num_targets[choice]
        suffix = f".{turn}" if turn > 1 else ""  # outputs of an earlier turn at the same target must not match
        request_id = RequestId(f"{self._reply_id}-{choice}{suffix}")
        self._placed[choice] = routed, request_id
        routed.submit(request_id, spec, partial(self._receive, choice))

    def _receive(self, choice: int, event: EngineOutput | StarspecError) -> None:
        if isinstance(event, EngineOutput):
            self._events.put_nowait(Progress(choice, event, starts_anew=choice in self._void))
            self._begun.add(choice)
            self._void.discard(choice)
        elif not self._is_moved(choice, event):
            self._events.put_nowait(event)

    def _is_moved(self, choice: int, error: StarspecError) -> bool:
        """Send the answer to another target if that helps. Returns: whether it did."""
        is_seen = self._request.options.is_stream and choice in self._begun
        if self._is_over or not may_move(error, self._num_targets[choice], is_seen=is_seen):
            return False
        lost, request_id = self._placed[choice]
        try:
            self._place(choice, but_not=lost)
        except StarspecError:
            return False  # the first error says more
        event, fields = "a request goes to another target", {"request": request_id, "lost": lost.endpoint}
        self._targets.log_limit.log(log.info, event, why=str(error), **fields)
        if choice in self._begun:
            self._begun.discard(choice)
            self._void.add(choice)
        return True

    async def _abort_all(self) -> None:
        """Abort what is open, a few in each turn of the event loop; all at once if this is cancelled."""
        self._is_over = True
        left = list(self._placed.values())
        try:
            while left:
                _abort(left.pop())
                await self._pace.step()
        finally:
            for each in left:
                _abort(each)


def _abort(placed: tuple[RoutedTarget, RequestId]) -> None:
    routed, request_id = placed
    routed.abort(request_id)
