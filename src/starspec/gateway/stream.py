"""Delivering a generation: as server-sent events or whole, to a client that may leave at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from starspec.gateway.answers import Answer, metrics_of, usage_of
from starspec.gateway.drain import BROKEN_OFF
from starspec.gateway.formats import ReplyBuilder
from starspec.gateway.generation import Generation, Progress
from starspec.gateway.generation_request import GenerationRequest
from starspec.gateway.http_errors import HttpError, http_error_of
from starspec.gateway.metrics import RequestTimer
from starspec.gateway.replies import Reply, RequestMetrics, Usage

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # asks reverse proxies to pass events on as they come
]

T = TypeVar("T")


async def until_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Run `work` until it ends or the client leaves: then it is cancelled, and the result is None.

    Args:
        receive: of a request whose body was read: the only message to come is the disconnect.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Delivery:
    """One order on its way to one client."""

    def __init__(
        self, request: GenerationRequest, generation: Generation, builder: ReplyBuilder, timer: RequestTimer
    ) -> None:
        self._request = request
        self.generation = generation
        self._builder = builder
        self.timer = timer
        self._answers = [Answer(index, spec.prompt_token_ids) for index, spec in enumerate(request.specs)]

    async def whole(self) -> Reply:
        """Wait for every answer. Raises: StarspecError if one was refused or broke off."""
        with self.generation:
            while not self.generation.is_finished:
                await self._next(None)
        return self._builder.whole(self._answers, self._usage(), metrics_of(self._answers))

    async def events(self, keep_alive_s: float) -> AsyncIterator[bytes]:
        """Server-sent events; the first comes no later than `keep_alive_s`. To be read inside `with generation`.

        Raises: StarspecError if an answer was refused or broke off.
        """
        while not self.generation.is_finished:
            noted = await self._next(keep_alive_s)
            if noted is None:
                yield KEEP_ALIVE
                continue
            for chunk in self._chunks(noted):
                yield event_of(chunk)
        if self._request.options.include_usage:
            yield event_of(self._builder.chunk([], self._usage(), metrics_of(self._answers)))
        yield DONE

    async def _next(self, timeout_s: float | None) -> tuple[Progress, bool] | None:
        """The next progress, noted in its answer, and whether it is the answer's first."""
        progress = await self.generation.next(timeout_s)
        if progress is None:
            return None
        self.timer.progress(self._request.num_prompt_tokens)
        answer = self._answers[progress.choice]
        is_first = answer.is_fresh
        answer.add(progress.output)
        if self.generation.is_finished:
            self.timer.finish()
        return progress, is_first

    def _chunks(self, noted: tuple[Progress, bool]) -> list[Reply]:
        (choice, output), is_first = noted
        answer, reply_format = self._answers[choice], self._builder.reply_format
        chunks = []
        if is_first and (opening := reply_format.opening(answer)) is not None:
            chunks.append(self._builder.chunk([opening], self._usage_so_far()))
        if (part := reply_format.part(answer, output)) is not None:
            chunks.append(self._builder.chunk([part], self._usage_so_far(), self._closing_metrics()))
        return chunks

    def _usage(self) -> Usage:
        return usage_of(self._request.num_prompt_tokens, self._answers)

    def _usage_so_far(self) -> Usage | UnsetType | None:
        options = self._request.options
        if options.continuous_usage:
            return self._usage()
        return None if options.include_usage else UNSET

    def _closing_metrics(self) -> RequestMetrics | UnsetType:
        """On the last chunk before the end: this one, unless a chunk with the usage follows."""
        is_last = self.generation.is_finished and not self._request.options.include_usage
        return metrics_of(self._answers) if is_last else UNSET


class EventStream(Response):
    """Streams a delivery; answers with a plain error as long as nothing was sent, and with an error event after.

    The one broad `except` of the gateway: whatever breaks, the client is told and only this request ends.
    """

    def __init__(self, delivery: Delivery, keep_alive_s: float) -> None:
        super().__init__()
        self._delivery = delivery
        self._keep_alive_s = keep_alive_s
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if await until_disconnect(self._stream(scope, receive, send), receive) is None:
                self._delivery.timer.abandon()
        except asyncio.CancelledError:  # the shutdown waits no longer; nothing but these last words is left to do
            await self._fail(BROKEN_OFF, scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Returns: True, to tell an end from a cancellation."""
        try:
            with self._delivery.generation:
                async for event in self._delivery.events(self._keep_alive_s):
                    if not self._has_started:
                        self._has_started = True
                        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:
            await self._fail(http_error_of(error), scope, receive, send)
        return True

    async def _fail(self, fault: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
        if self._has_started:
            await send({"type": "http.response.body", "body": error_event(fault) + DONE, "more_body": False})
        else:
            await fault.response()(scope, receive, send)


def event_of(reply: Reply) -> bytes:
    return b"data: " + msgspec.json.encode(reply) + b"\n\n"


def error_event(fault: HttpError) -> bytes:
    return b"data: " + fault.body() + b"\n\n"
