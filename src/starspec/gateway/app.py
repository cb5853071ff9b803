"""The HTTP routes. A completion route translates the request, generates, and delivers the answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from starspec import __version__
from starspec.audit import AuditLog
from starspec.config import GatewayConfig
from starspec.errors import RequestError, StarspecError
from starspec.gateway.background import run_forever
from starspec.gateway.dashboard.feed import StarFeed
from starspec.gateway.dashboard.routes import DashboardRoutes
from starspec.gateway.drain import Drain, DrainMiddleware
from starspec.gateway.formats import ChatFormat, CompletionFormat, ReplyBuilder, ReplyFormat, VerificationBuilder
from starspec.gateway.generation import Generation
from starspec.gateway.generation_request import GenerationRequest, ReplyOptions
from starspec.gateway.health import HealthRoutes
from starspec.gateway.http_errors import CLIENT_LEFT, http_error_of
from starspec.gateway.hub_status import HubStatusPoller
from starspec.gateway.metrics import GatewayMetrics, MetricsMiddleware, RequestTimer
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.recent import Recent
from starspec.gateway.request_body import JsonRoute, readers
from starspec.gateway.request_checks import ApiKeyMiddleware, BodyLimitMiddleware, FramingMiddleware
from starspec.gateway.responses.delivery import ResponseBuilder, ResponseDelivery
from starspec.gateway.responses.schema import ResponsesRequest
from starspec.gateway.retry_after import RetryAfter
from starspec.gateway.router import Router
from starspec.gateway.schema import (
    ChatCompletionRequest,
    ChatPrompt,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    VerifyRequest,
)
from starspec.gateway.served_model import ModelIdentity
from starspec.gateway.stream import Delivery, EventStream, until_disconnect, within
from starspec.gateway.token_text import TokenText
from starspec.gateway.translate import Translator
from starspec.gateway.unsupported import refuse_unsupported
from starspec.observe.metrics import StatusSnapshot
from starspec.quoting import quoted, shortened

MakeBuilder = Callable[[ReplyOptions, str], ReplyBuilder]
"""Makes what builds the replies of one request: (its options, the id of the reply)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes use."""

    config: GatewayConfig
    identity: ModelIdentity
    router: Router
    codec: PromptCodec
    translator: Translator
    drain: Drain
    feed: StarFeed
    clock: Callable[[], float] = time.monotonic
    hub: HubStatusPoller | None = None

    def snapshot(self) -> StatusSnapshot:
        return StatusSnapshot(self.router.statuses, self.hub.status if self.hub else None)

    def num_waiting(self) -> int:
        """Requests in the queues of the targets."""
        return sum(status.num_waiting for status in self.router.statuses)


class Routes:
    """One method for each route."""

    def __init__(self, services: Services, metrics: GatewayMetrics, retry_after: RetryAfter) -> None:
        self._services = services
        self._metrics = metrics
        self._recent_metrics = Recent(partial(generate_latest, metrics.registry), services.clock)
        self.of_health = HealthRoutes(services.router, services.hub, services.clock)
        self._retry_after = retry_after

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        self._check_model(body.model)
        translation = self._services.translator.completion(body, self._services.router.max_model_len)
        return await self._answer(translation, self._builder_of(CompletionFormat), "cmpl", request)

    async def chat_completions(self, body: ChatCompletionRequest, request: Request) -> Response:
        self._check_model(body.model)
        translation = self._services.translator.chat(body, self._services.router.max_model_len)
        return await self._answer(translation, self._builder_of(ChatFormat), "chatcmpl", request)

    async def responses(self, body: ResponsesRequest, request: Request) -> Response:
        self._check_model(body.model)
        translation = self._services.translator.response(body, self._services.router.max_model_len)
        return await self._answer(translation, self._response_builder_of(body), "resp", request, ResponseDelivery)

    async def verify(self, body: VerifyRequest, request: Request) -> Response:
        self._check_model(body.model)
        translation = self._services.translator.verification(body, self._services.router.max_model_len)
        return await self._answer(translation, self._verification_builder, "verify", request)

    async def embeddings(self) -> Response:
        raise RequestError("this server generates text and computes no embeddings: ask one that has a model for them")

    async def models(self) -> Response:
        self.of_health.check_ready()
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, model_id: str) -> Response:
        self._check_model(model_id)
        self.of_health.check_ready()
        return JSONResponse(self._card())

    async def tokenize(self, body: TokenizeRequest, request: Request) -> Response:
        self._check_model(body.model)
        refuse_unsupported(body.model_extra, TokenizeRequest.model_fields)
        return await _json_unless_left(self._tokenization(body), request)

    async def detokenize(self, body: DetokenizeRequest, request: Request) -> Response:
        self._check_model(body.model)
        refuse_unsupported(body.model_extra, DetokenizeRequest.model_fields)
        return await _json_unless_left(self._detokenization(body), request)

    async def metrics(self) -> Response:
        return Response(self._recent_metrics.get(), media_type=CONTENT_TYPE_LATEST)

    async def version(self) -> Response:
        return JSONResponse({"version": __version__})

    async def _answer(
        self,
        translation: Coroutine[Any, Any, GenerationRequest],
        make_builder: MakeBuilder,
        prefix: str,
        request: Request,
        make_delivery: type[Delivery] = Delivery,
    ) -> Response:
        """Translate, generate, and deliver the answer, unless the client leaves before."""
        timeout_s, started_s = self._services.config.request_timeout_s, self._services.clock()
        timer = RequestTimer(self._metrics, self._services.clock)
        async with within(timeout_s):
            generation_request = await until_disconnect(translation, request.receive)
        if generation_request is None:
            timer.disconnect()
            return Response(status_code=CLIENT_LEFT)
        reply_id = f"{prefix}-{secrets.token_hex(16)}"
        delivery = self._delivery(generation_request, make_builder, reply_id, timer, make_delivery)
        time_limit = partial(within, timeout_s, self._services.clock() - started_s)
        if generation_request.options.is_stream:
            return EventStream(delivery, self._services.config.keep_alive_s, time_limit)
        async with time_limit():
            reply = await until_disconnect(delivery.whole(), request.receive)
        if reply is None:
            timer.disconnect()
            return Response(status_code=CLIENT_LEFT)
        return Response(reply, media_type="application/json")

    def _delivery(
        self,
        generation_request: GenerationRequest,
        make_builder: MakeBuilder,
        reply_id: str,
        timer: RequestTimer,
        make_delivery: type[Delivery],
    ) -> Delivery:
        generation = Generation(self._services.router, generation_request, reply_id)
        builder = make_builder(generation_request.options, reply_id)
        note_finished = partial(self._services.feed.requests.add, reply_id)
        return make_delivery(
            generation_request, generation, builder, timer, self._retry_after, self._services.codec.run, note_finished
        )

    def _builder_of(self, make_format: Callable[[ReplyOptions, TokenText], ReplyFormat]) -> MakeBuilder:
        identity, tokens = self._services.identity, self._services.codec.tokens

        def make(options: ReplyOptions, reply_id: str) -> ReplyBuilder:
            return ReplyBuilder(reply_id, identity.model, identity.fingerprint, make_format(options, tokens))

        return make

    def _response_builder_of(self, body: ResponsesRequest) -> MakeBuilder:
        identity, tokens = self._services.identity, self._services.codec.tokens

        def make(options: ReplyOptions, reply_id: str) -> ReplyBuilder:
            return ResponseBuilder(reply_id, identity.model, identity.fingerprint, options, tokens, body)

        return make

    def _verification_builder(self, options: ReplyOptions, reply_id: str) -> ReplyBuilder:  # noqa: ARG002 (it has none)
        identity = self._services.identity
        return VerificationBuilder(reply_id, identity.model, identity.fingerprint, self._services.codec.tokens)

    async def _tokenization(self, body: TokenizeRequest) -> bytes:
        token_ids = await self._tokenized(body)
        codec, length = self._services.codec, self._services.router.max_model_len

        def encoded() -> bytes:  # on a worker thread, because there may be a million tokens
            strings = [codec.tokens.text_of(token_id) for token_id in token_ids] if body.return_token_strs else None
            return msgspec.json.encode(
                {"count": len(token_ids), "max_model_len": length, "tokens": token_ids, "token_strs": strings}
            )

        return await codec.run(encoded)

    async def _detokenization(self, body: DetokenizeRequest) -> bytes:
        return msgspec.json.encode({"prompt": await self._services.codec.decode(body.tokens)})

    async def _tokenized(self, body: TokenizeRequest) -> list[int]:
        length = self._services.router.max_model_len
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("give either prompt or messages", "prompt")
        if body.prompt is not None:
            adds_special = body.add_special_tokens is not False
            return await self._services.codec.encode(body.prompt, "prompt", length, add_special_tokens=adds_special)
        chat = ChatPrompt.model_construct(  # checked already
            messages=body.messages or [],
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return await self._services.codec.encode_chat(chat, length)

    def _check_model(self, asked: str | None) -> None:
        served = self._services.identity.model
        if asked is not None and asked != served:
            is_near = bool(get_close_matches(shortened(asked), [served]))
            hint = f"did you mean {served!r}?" if is_near else f"this server has {served!r}"
            raise RequestError(f"the model {quoted(asked)} does not exist; {hint}", "model", 404)

    def _card(self) -> dict[str, Any]:
        identity = self._services.identity
        return {
            "id": identity.model,
            "object": "model",
            "created": identity.created_s,
            "owned_by": "starspec",
            "max_model_len": self._services.router.max_model_len,
        }


async def _json_unless_left(work: Coroutine[Any, Any, bytes], request: Request) -> Response:
    """The JSON that `work` makes; nothing if the client leaves before."""
    body = await until_disconnect(work, request.receive)
    if body is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(body, media_type="application/json")


def build_app(services: Services, metrics: GatewayMetrics, audit: AuditLog) -> FastAPI:
    """The ASGI application; its lifespan runs the router."""
    retry_after = RetryAfter(services.num_waiting, services.clock)
    app = FastAPI(title="starspec", version=__version__, lifespan=_lifespan(services), docs_url=None, redoc_url=None)
    _add_routes(app, Routes(services, metrics, retry_after), readers(services.codec.workers))
    DashboardRoutes(services.feed, services.drain, services.clock).add_to(app)
    _add_error_handlers(app, retry_after)
    app.add_middleware(BodyLimitMiddleware, max_bytes=services.config.max_body_bytes)
    if services.config.api_key is not None:
        app.add_middleware(ApiKeyMiddleware, api_key=services.config.api_key)
    app.add_middleware(DrainMiddleware, drain=services.drain)
    app.add_middleware(FramingMiddleware)
    # added last = outermost, so it counts refused requests too
    app.add_middleware(MetricsMiddleware, metrics=metrics, audit=audit)
    return app


def _add_routes(app: FastAPI, routes: Routes, json_route: type[JsonRoute]) -> None:
    gets: dict[str, Callable[..., Any]] = {
        "/v1/models": routes.models,
        "/v1/models/{model_id:path}": routes.model,
        "/health": routes.of_health.health,
        "/health/ready": routes.of_health.ready,
        "/metrics": routes.metrics,
        "/version": routes.version,
    }
    posts: dict[str, Callable[..., Any]] = {
        "/v1/completions": routes.completions,
        "/v1/chat/completions": routes.chat_completions,
        "/v1/responses": routes.responses,
        "/v1/verify": routes.verify,
        "/tokenize": routes.tokenize,
        "/detokenize": routes.detokenize,
    }
    for path, endpoint in gets.items():
        app.add_api_route(path, endpoint, methods=["GET"], response_model=None)
    for method in ("GET", "POST"):  # as vLLM. Two routes, since one has one id in the OpenAPI description
        app.add_api_route("/ping", routes.of_health.ping, methods=[method], response_model=None)
    app.add_api_route("/v1/embeddings", routes.embeddings, methods=["POST"], response_model=None)
    for path, endpoint in posts.items():
        app.router.add_api_route(path, endpoint, methods=["POST"], response_model=None, route_class_override=json_route)


def _add_error_handlers(app: FastAPI, retry_after: RetryAfter) -> None:
    async def answer(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the framework's signature)
        response = http_error_of(error, retry_after.seconds()).response()
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    for kind in (StarspecError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _lifespan(services: Services) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 (the framework's signature)
        async with services.router:
            runs = [services.feed.run, *([services.hub.run] if services.hub else [])]
            watching = [asyncio.create_task(run_forever(run)) for run in runs]
            try:
                yield
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)
                services.codec.close()
                services.translator.close()

    return run
