"""The answers of one HTTP request while they are generated. None of them outlives its client."""

from __future__ import annotations

import asyncio
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from starspec.errors import RequestError, StarspecError
from starspec.gateway.generation_request import GenerationRequest
from starspec.gateway.router import RoutedTarget, Router
from starspec.ids import RequestId
from starspec.wire.messages import EngineOutput


class Progress(NamedTuple):
    """What one round added to one answer."""

    choice: int
    output: EngineOutput


class Generation:
    """A context manager that submits every answer on entry, and aborts unfinished ones on exit.

    The internal queue is bounded by the lengths of the answers, which the targets' contexts bound.
    """

    def __init__(self, router: Router, request: GenerationRequest, reply_id: str) -> None:
        self._router = router
        self._request = request
        self._reply_id = reply_id
        self._submitted: list[tuple[RoutedTarget, RequestId]] = []
        self._events: asyncio.Queue[tuple[int, EngineOutput | StarspecError]] = asyncio.Queue()
        self._num_unfinished = len(request.specs)

    def __enter__(self) -> Self:
        """Submit every answer.

        Raises: CapacityError if no target can take an answer; those already submitted are aborted. RequestError if
            there are more answers than the targets could ever hold.
        """
        self._check_size()
        try:
            for index, spec in enumerate(self._request.specs):
                routed = self._router.pick(len(spec.prompt_token_ids) + (spec.max_tokens or 1) - 1)
                request_id = RequestId(f"{self._reply_id}-{index}")
                self._submitted.append((routed, request_id))
                routed.submit(request_id, spec, partial(self._receive, index))
        except StarspecError:
            self._abort_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abort_all()

    @property
    def is_finished(self) -> bool:
        return self._num_unfinished == 0

    async def next(self, timeout_s: float | None = None) -> Progress | None:
        """The next progress of any answer; None if `timeout_s` passes without one.

        Raises: StarspecError if an answer was refused or aborted; the whole request has failed then.
        """
        try:
            async with asyncio.timeout(timeout_s):
                choice, event = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(event, RequestError) and event.param == "prompt":
            raise RequestError(str(event), self._request.prompt_param, event.status)
        if isinstance(event, StarspecError):
            raise event
        if event.finish_reason is not None:
            self._num_unfinished -= 1
        return Progress(choice, event)

    def _check_size(self) -> None:
        num_answers, most = len(self._request.specs), self._router.max_num_requests
        if most is not None and num_answers > most:
            param = "n" if self._request.num_prompts == 1 else self._request.prompt_param
            raise RequestError(
                f"{param}: the request is for {num_answers} answers, more than the {most} that the targets hold "
                "at once, running and waiting: ask for fewer at a time",
                param,
            )

    def _receive(self, choice: int, event: EngineOutput | StarspecError) -> None:
        self._events.put_nowait((choice, event))

    def _abort_all(self) -> None:
        for routed, request_id in self._submitted:
            routed.abort(request_id)
