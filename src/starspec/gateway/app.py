"""The HTTP routes. A completion route translates the request, generates, and delivers the answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from starspec import __version__
from starspec.audit import AuditLog
from starspec.errors import RequestError, StarspecError
from starspec.gateway.background import run_forever
from starspec.gateway.dashboard.routes import DashboardRoutes
from starspec.gateway.drain import DrainMiddleware
from starspec.gateway.formats import ChatFormat, CompletionFormat, ReplyBuilder, ReplyFormat, VerificationBuilder
from starspec.gateway.generation import Generation
from starspec.gateway.generation_request import GenerationRequest, ReplyOptions
from starspec.gateway.health import HealthRoutes, check_ready
from starspec.gateway.http_errors import CLIENT_LEFT, http_error_of
from starspec.gateway.metrics import GatewayMetrics, MetricsMiddleware, RequestTimer
from starspec.gateway.recent import Recent
from starspec.gateway.request_body import JsonRoute, readers
from starspec.gateway.request_checks import ApiKeyMiddleware, BodyLimitMiddleware, FramingMiddleware
from starspec.gateway.responses.delivery import ResponseBuilder, ResponseDelivery
from starspec.gateway.responses.schema import ResponsesRequest
from starspec.gateway.retry_after import RetryAfter
from starspec.gateway.schema import ChatCompletionRequest, CompletionRequest, VerifyRequest
from starspec.gateway.services import Served, Services
from starspec.gateway.stream import Delivery, EventStream, until_disconnect, within
from starspec.gateway.token_text import TokenText
from starspec.gateway.tokenization import TokenizationRoutes
from starspec.quoting import quoted, shortened

MakeBuilder = Callable[[ReplyOptions, str], ReplyBuilder]
"""Makes what builds the replies of one request: (its options, the id of the reply)."""


class Routes:
    """One method for each route."""

    def __init__(self, services: Services, metrics: GatewayMetrics, retry_after: RetryAfter) -> None:
        self._services = services
        self._metrics = metrics
        self._recent_metrics = Recent(partial(generate_latest, metrics.registry), services.clock)
        models = {name: each.targets for name, each in services.served.items()}
        self.of_tokens = TokenizationRoutes(services)
        self.of_health = HealthRoutes(services.router, models, services.hub, services.clock)
        self._retry_after = retry_after

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        served = self._services.of(body.model)
        translation = served.translator.completion(body, served.targets.max_model_len)
        return await self._answer(served, translation, _builder_of(served, CompletionFormat), "cmpl", request)

    async def chat_completions(self, body: ChatCompletionRequest, request: Request) -> Response:
        served = self._services.of(body.model)
        translation = served.translator.chat(body, served.targets.max_model_len)
        return await self._answer(served, translation, _builder_of(served, ChatFormat), "chatcmpl", request)

    async def responses(self, body: ResponsesRequest, request: Request) -> Response:
        served = self._services.of(body.model)
        translation = served.translator.response(body, served.targets.max_model_len)
        make_builder = _response_builder_of(served, body)
        return await self._answer(served, translation, make_builder, "resp", request, ResponseDelivery)

    async def verify(self, body: VerifyRequest, request: Request) -> Response:
        served = self._services.of(body.model)
        translation = served.translator.verification(body, served.targets.max_model_len)
        return await self._answer(served, translation, _verification_builder_of(served), "verify", request)

    async def embeddings(self) -> Response:
        raise RequestError("this server generates text and computes no embeddings: ask one that has a model for them")

    async def models(self) -> Response:
        check_ready(self._services.router)
        cards = [each.card() for each in self._services.served.values() if each.targets.is_ready]
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, model_id: str) -> Response:
        served = self._services.of(model_id)
        check_ready(served.targets)
        return JSONResponse(served.card())

    async def metrics(self) -> Response:
        return Response(self._recent_metrics.get(), media_type=CONTENT_TYPE_LATEST)

    async def version(self) -> Response:
        return JSONResponse({"version": __version__})

    async def _answer(
        self,
        served: Served,
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
        delivery = self._delivery(served, generation_request, make_builder, reply_id, timer, make_delivery)
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
        served: Served,
        generation_request: GenerationRequest,
        make_builder: MakeBuilder,
        reply_id: str,
        timer: RequestTimer,
        make_delivery: type[Delivery],
    ) -> Delivery:
        generation = Generation(served.targets, generation_request, reply_id)
        builder = make_builder(generation_request.options, reply_id)
        note_finished = partial(self._services.feed.note_finished, reply_id)
        return make_delivery(
            generation_request, generation, builder, timer, self._retry_after, served.codec.run, note_finished
        )


def _builder_of(served: Served, make_format: Callable[[ReplyOptions, TokenText], ReplyFormat]) -> MakeBuilder:
    def make(options: ReplyOptions, reply_id: str) -> ReplyBuilder:
        reply_format = make_format(options, served.codec.tokens)
        return ReplyBuilder(reply_id, served.identity.model, served.identity.fingerprint, reply_format)

    return make


def _response_builder_of(served: Served, body: ResponsesRequest) -> MakeBuilder:
    def make(options: ReplyOptions, reply_id: str) -> ReplyBuilder:
        identity, tokens = served.identity, served.codec.tokens
        return ResponseBuilder(reply_id, identity.model, identity.fingerprint, options, tokens, body)

    return make


def _verification_builder_of(served: Served) -> MakeBuilder:
    def make(options: ReplyOptions, reply_id: str) -> ReplyBuilder:  # noqa: ARG001 (it has none)
        return VerificationBuilder(reply_id, served.identity.model, served.identity.fingerprint, served.codec.tokens)

    return make


def build_app(services: Services, metrics: GatewayMetrics, audit: AuditLog) -> FastAPI:
    """The ASGI application; its lifespan runs the router."""
    retry_after = RetryAfter(services.num_waiting, services.num_rows, services.clock)
    app = FastAPI(title="starspec", version=__version__, lifespan=_lifespan(services), openapi_url=None)
    _add_description(app, services)
    _add_routes(app, Routes(services, metrics, retry_after), readers(services.of(None).codec.workers))
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
        "/tokenize": routes.of_tokens.tokenize,
        "/detokenize": routes.of_tokens.detokenize,
    }
    for path, endpoint in gets.items():
        app.add_api_route(path, endpoint, methods=["GET"], response_model=None)
    for method in ("GET", "POST"):  # as vLLM. Two routes, since one has one id in the OpenAPI description
        app.add_api_route("/ping", routes.of_health.ping, methods=[method], response_model=None)
    app.add_api_route("/v1/embeddings", routes.embeddings, methods=["POST"], response_model=None)
    for path, endpoint in posts.items():
        app.router.add_api_route(path, endpoint, methods=["POST"], response_model=None, route_class_override=json_route)


def _add_description(app: FastAPI, services: Services) -> None:
    """FastAPI's own route makes the OpenAPI description on the event loop, which takes a tenth of a second, once."""

    async def describe(request: Request) -> Response:  # noqa: ARG001 (of the framework)
        return JSONResponse(await services.of(None).codec.run(app.openapi))

    app.add_route("/openapi.json", describe, methods=["GET"], include_in_schema=False)


def _add_error_handlers(app: FastAPI, retry_after: RetryAfter) -> None:
    paths = [route.path for route in app.routes if isinstance(route, APIRoute) and "/dashboard" not in route.path]

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 404:
            error = HTTPException(404, _no_path(request.url.path, paths))
        if isinstance(error, HTTPException) and error.status_code == 405:
            error = HTTPException(405, _no_method(request, error.headers or {}), error.headers)
        response = http_error_of(error, retry_after.seconds()).response()
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    for kind in (StarspecError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _no_path(asked: str, paths: Sequence[str]) -> str:
    """The sentence about a path that does not exist."""
    near = get_close_matches(shortened(asked), paths, n=1)
    hint = f"; did you mean {near[0]}?" if near else ";"
    return f"there is no {quoted(asked)} here{hint} known: {', '.join(dict.fromkeys(paths))}"


def _no_method(request: Request, headers: Mapping[str, str]) -> str:
    """The sentence about a method that a path does not have. Args: headers: of the refusal."""
    return f"{request.method} is not for {quoted(request.url.path)}: use {headers.get('Allow', 'another method')}"


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
                for served in services.served.values():
                    served.codec.close()
                    served.translator.close()

    return run
