"""Delivers a generation, as server-sent events or as one reply, to a client that may disconnect at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from starspec.errors import RequestTimedOut
from starspec.gateway.answers import Answer, metrics_of, usage_of
from starspec.gateway.drain import CANCELLED
from starspec.gateway.formats import ReplyBuilder
from starspec.gateway.generation import Generation, Progress
from starspec.gateway.generation_request import GenerationRequest
from starspec.gateway.http_errors import HttpError, http_error_of
from starspec.gateway.metrics import RequestTimer
from starspec.gateway.replies import Reply, RequestMetrics, Usage
from starspec.gateway.retry_after import RetryAfter
from starspec.gateway.routed_target import RoutedTarget
from starspec.wire.messages import EngineOutput

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"
FEW_ENTRIES: Final = 4096  # of a reply that is written on the event loop, in a few milliseconds
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # asks reverse proxies not to buffer events
]

T = TypeVar("T")


async def until_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Run `work` until it ends, or cancel it when the client disconnects.

    Args:
        receive: of a request whose body has been read, so that the only message to come is the disconnect.
    Returns: the result; None if the client disconnected.
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


@asynccontextmanager
async def within(timeout_s: float, spent_s: float = 0.0) -> AsyncIterator[None]:
    """Cancels the block at the end of a request's time.

    Args:
        timeout_s: the time that a request has.
        spent_s: how much of it has passed.
    Raises: RequestTimedOut if the time is over.
    """
    try:
        async with asyncio.timeout(timeout_s - spent_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise RequestTimedOut(
            f"the answer was not finished within {timeout_s:g} s, which is the longest that a request may take "
            "here: ask for fewer tokens, or try again when the server is less busy"
        ) from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Delivery:
    """Delivers the answers of one generation request to its client.

    Args:
        run: runs work on another thread, such as writing a long reply.
        note_finished: is told of the target, the number of prompt tokens and the answers, once all are whole.
    """

    def __init__(
        self,
        request: GenerationRequest,
        generation: Generation,
        builder: ReplyBuilder,
        timer: RequestTimer,
        retry_after: RetryAfter,
        run: Callable[[Callable[[], bytes]], Awaitable[bytes]],
        note_finished: Callable[[RoutedTarget, int, Sequence[Answer]], None],
    ) -> None:
        self._request = request
        self._run = run
        self._note_finished = note_finished
        self.retry_after = retry_after
        self.generation = generation
        self._builder = builder
        self.timer = timer
        self._answers = [self._new_answer(choice) for choice in range(len(request.specs))]

    @asynccontextmanager
    async def generating(self) -> AsyncIterator[None]:
        """Generate while the block runs. Raises: as the generation's `__aenter__`."""
        self.retry_after.begin(len(self._answers))
        try:
            async with self.generation:
                yield
        finally:
            self.retry_after.leave(self.generation.num_unfinished)

    async def whole(self) -> bytes:
        """Wait for every answer, and write the reply as JSON. Raises: StarspecError if one was refused or aborted."""
        async with self.generating():
            while not self.generation.is_finished:
                await self._next(None)
        if sum(answer.num_entries for answer in self._answers) <= FEW_ENTRIES:
            return self._written()
        return await self._run(self._written)

    def _written(self) -> bytes:
        return msgspec.json.encode(self._builder.whole(self._answers, self._usage(), metrics_of(self._answers)))

    async def events(self, keep_alive_s: float) -> AsyncIterator[bytes]:
        """Server-sent events. The first comes within `keep_alive_s`. Iterate inside `async with generating()`.

        Raises: StarspecError if an answer was refused or aborted.
        """
        while not self.generation.is_finished:
            update = await self._next(keep_alive_s)
            if update is None:
                yield KEEP_ALIVE
                continue
            for event in self._events_of(update):
                yield event
        for event in self._last_events():
            yield event

    def error_event(self, fault: HttpError) -> bytes:
        """What ends a stream that has begun."""
        return b"data: " + fault.body() + b"\n\n" + DONE

    async def _next(self, timeout_s: float | None) -> tuple[Progress, bool] | None:
        """The next progress, added to its answer, and whether it is the answer's first.

        Returns: None after `timeout_s`, or if it was about the prompt.
        """
        progress = await self.generation.next(timeout_s)
        if progress is None:
            return None
        if progress.output.finish_reason is not None:
            self.retry_after.finish()
        if not self._request.options.has_answer:
            progress = progress._replace(output=_without_answer(progress.output))
        if progress.starts_anew:
            self._answers[progress.choice] = self._new_answer(progress.choice)
        answer = self._answers[progress.choice]
        is_first = answer.is_empty
        answer.add(progress.output)
        if progress.output.prompt_logprobs is not None:
            return None
        self.timer.progress(self._request.num_prompt_tokens)
        if self.generation.is_finished:
            self.timer.finish()
            self._note_finished(self.generation.target, self._request.num_prompt_tokens, self._answers)
        return progress, is_first

    def _new_answer(self, choice: int) -> Answer:
        return Answer(choice, self._request.specs[choice].prompt_token_ids, self._request.prompt_text(choice))

    def _events_of(self, update: tuple[Progress, bool]) -> Iterator[bytes]:
        (choice, output, _), is_first = update
        answer, reply_format = self._answers[choice], self._builder.reply_format
        if is_first and (opening := reply_format.opening(answer)) is not None:
            yield event_of(self._builder.chunk([opening], self._usage_so_far()))
        if (part := reply_format.part(answer, output)) is not None:
            yield event_of(self._builder.chunk([part], self._usage_so_far(), self._closing_metrics()))

    def _last_events(self) -> Iterator[bytes]:
        """When all answers are whole."""
        if self._request.options.include_usage:
            yield event_of(self._builder.chunk([], self._usage(), metrics_of(self._answers)))
        yield DONE

    def _usage(self) -> Usage:
        has_prediction = self._request.specs[0].prediction is not None
        return usage_of(self._request.num_prompt_tokens, self._answers, has_prediction=has_prediction)

    def _usage_so_far(self) -> Usage | UnsetType | None:
        options = self._request.options
        if options.continuous_usage:
            return self._usage()
        return None if options.include_usage else UNSET

    def _closing_metrics(self) -> RequestMetrics | UnsetType:
        """The metrics, in the last chunk that has content or usage."""
        is_last = self.generation.is_finished and not self._request.options.include_usage
        return metrics_of(self._answers) if is_last else UNSET


class EventStream(Response):
    """Streams a delivery. An error is sent as a JSON response before the first event, and as an error event after it.

    Any exception ends only this request, and its client gets an error.
    """

    def __init__(
        self, delivery: Delivery, keep_alive_s: float, time_limit: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        super().__init__()
        self._delivery = delivery
        self._time_limit = time_limit
        self._keep_alive_s = keep_alive_s
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if await until_disconnect(self._stream(scope, receive, send), receive) is None:
                self._delivery.timer.disconnect()
        except asyncio.CancelledError:  # the drain timeout is over; only this error is still sent
            await self._fail(CANCELLED, scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Returns: True, which distinguishes an end from a cancellation."""
        try:
            async with self._time_limit():
                await self._send_events(send)
        except Exception as error:
            await self._fail(http_error_of(error, self._delivery.retry_after.seconds()), scope, receive, send)
        return True

    async def _send_events(self, send: Send) -> None:
        async with self._delivery.generating():
            async for event in self._delivery.events(self._keep_alive_s):
                if not self._has_started:
                    self._has_started = True
                    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, fault: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
        if self._has_started:
            await send({"type": "http.response.body", "body": self._delivery.error_event(fault), "more_body": False})
        else:
            await fault.response()(scope, receive, send)


def _without_answer(output: EngineOutput) -> EngineOutput:
    """The output for a client that wants its prompt only. A target generates at least one token."""
    reason = None if output.finish_reason is None else "length"
    return replace(output, token_ids=[], text="", logprobs=None, finish_reason=reason, stop_reason=None)


def event_of(reply: Reply) -> bytes:
    return b"data: " + msgspec.json.encode(reply) + b"\n\n"
