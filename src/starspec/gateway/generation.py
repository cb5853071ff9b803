"""The answers of one HTTP request while they are made, and the promise that none outlives its client."""

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
    """A context manager: entering submits every answer, leaving aborts those that are not finished, however it is left.

    The queue inside is bounded by the answers' own lengths, which the targets bound by their context.
    """

    def __init__(self, router: Router, request: GenerationRequest, reply_id: str) -> None:
        self._router = router
        self._request = request
        self._reply_id = reply_id
        self._placed: list[tuple[RoutedTarget, RequestId]] = []
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
                routed = self._router.pick(len(spec.prompt_token_ids))
                request_id = RequestId(f"{self._reply_id}-{index}")
                self._placed.append((routed, request_id))
                routed.submit(request_id, spec, partial(self._note, index))
        except StarspecError:
            self._abandon()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandon()

    @property
    def is_finished(self) -> bool:
        return self._num_unfinished == 0

    async def next(self, timeout_s: float | None = None) -> Progress | None:
        """The next progress of any answer; None if `timeout_s` passes without one.

        Raises: StarspecError if an answer was refused or broke off: the request as a whole has failed then.
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
                f"{param}: the request is for {num_answers} answers, more than the {most} that the servers hold "
                "at once, running and waiting: ask for fewer at a time",
                param,
            )

    def _note(self, choice: int, event: EngineOutput | StarspecError) -> None:
        self._events.put_nowait((choice, event))

    def _abandon(self) -> None:
        for routed, request_id in self._placed:
            routed.abandon(request_id)
