"""The HTTP routes. A completion route translates the request, generates, and delivers the answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from starspec import __version__
from starspec.config import GatewayConfig
from starspec.errors import RequestError, StarspecError
from starspec.gateway.background import run_forever
from starspec.gateway.drain import Drain, DrainMiddleware
from starspec.gateway.formats import ChatFormat, CompletionFormat, ReplyBuilder, ReplyFormat
from starspec.gateway.generation import Generation
from starspec.gateway.generation_request import GenerationRequest
from starspec.gateway.health import HealthRoutes
from starspec.gateway.http_errors import http_error_of
from starspec.gateway.hub_status import HubStatusPoller
from starspec.gateway.metrics import GatewayMetrics, MetricsMiddleware, RequestTimer
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.request_checks import ApiKeyMiddleware, BodyLimitMiddleware, JsonRoute
from starspec.gateway.router import Router
from starspec.gateway.schema import (
    ChatCompletionRequest,
    ChatPrompt,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from starspec.gateway.served_model import ModelIdentity
from starspec.gateway.stream import Delivery, EventStream, until_disconnect
from starspec.gateway.translate import Translator
from starspec.gateway.unsupported import refuse_unsupported
from starspec.observe.metrics import StatusSnapshot

CLIENT_LEFT: Final = 499  # no client sees it; it makes disconnects visible in the counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes use."""

    config: GatewayConfig
    identity: ModelIdentity
    router: Router
    codec: PromptCodec
    translator: Translator
    drain: Drain
    clock: Callable[[], float] = time.monotonic
    hub: HubStatusPoller | None = None

    def snapshot(self) -> StatusSnapshot:
        return StatusSnapshot(self.router.statuses, self.hub.status if self.hub else None)


class Routes:
    """One method for each route."""

    def __init__(self, services: Services, metrics: GatewayMetrics) -> None:
        self._services = services
        self._metrics = metrics
        self.of_health = HealthRoutes(services.router, services.hub)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        self._check_model(body.model)
        timer = RequestTimer(self._metrics, self._services.clock)
        generation_request = await self._services.translator.completion(body, self._services.router.max_model_len)
        reply_format = CompletionFormat(generation_request.options, self._services.codec.tokens)
        return await self._deliver(generation_request, reply_format, f"cmpl-{secrets.token_hex(16)}", request, timer)

    async def chat_completions(self, body: ChatCompletionRequest, request: Request) -> Response:
        self._check_model(body.model)
        timer = RequestTimer(self._metrics, self._services.clock)
        generation_request = await self._services.translator.chat(body, self._services.router.max_model_len)
        reply_format = ChatFormat(generation_request.options, self._services.codec.tokens)
        return await self._deliver(
            generation_request, reply_format, f"chatcmpl-{secrets.token_hex(16)}", request, timer
        )

    async def models(self) -> Response:
        self.of_health.check_ready()
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, model_id: str) -> Response:
        self._check_model(model_id)
        self.of_health.check_ready()
        return JSONResponse(self._card())

    async def tokenize(self, body: TokenizeRequest) -> Response:
        self._check_model(body.model)
        refuse_unsupported(body.model_extra)
        token_ids = await self._tokenized(body)
        tokens = self._services.codec.tokens
        strings = [tokens.text_of(token_id) for token_id in token_ids] if body.return_token_strs else None
        length = self._services.router.max_model_len
        return JSONResponse(
            {"count": len(token_ids), "max_model_len": length, "tokens": token_ids, "token_strs": strings}
        )

    async def detokenize(self, body: DetokenizeRequest) -> Response:
        self._check_model(body.model)
        return JSONResponse({"prompt": await self._services.codec.decode(body.tokens)})

    async def metrics(self) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def version(self) -> Response:
        return JSONResponse({"version": __version__})

    async def _deliver(
        self,
        generation_request: GenerationRequest,
        reply_format: ReplyFormat,
        reply_id: str,
        request: Request,
        timer: RequestTimer,
    ) -> Response:
        identity = self._services.identity
        generation = Generation(self._services.router, generation_request, reply_id)
        builder = ReplyBuilder(reply_id, identity.model, identity.fingerprint, reply_format)
        delivery = Delivery(generation_request, generation, builder, timer)
        if generation_request.options.is_stream:
            return EventStream(delivery, self._services.config.keep_alive_s)
        reply = await until_disconnect(delivery.whole(), request.receive)
        if reply is None:
            timer.disconnect()
            return Response(status_code=CLIENT_LEFT)
        return Response(msgspec.json.encode(reply), media_type="application/json")

    async def _tokenized(self, body: TokenizeRequest) -> list[int]:
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("give either prompt or messages", "prompt")
        if body.prompt is not None:
            adds_special = body.add_special_tokens is not False
            return await self._services.codec.encode(body.prompt, add_special_tokens=adds_special)
        chat = ChatPrompt(
            messages=body.messages or [],
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        return await self._services.codec.encode_chat(chat)

    def _check_model(self, asked: str | None) -> None:
        if asked is not None and asked != self._services.identity.model:
            raise RequestError(f"the model {asked!r} does not exist", "model", 404)

    def _card(self) -> dict[str, Any]:
        identity = self._services.identity
        return {
            "id": identity.model,
            "object": "model",
            "created": identity.created_s,
            "owned_by": "starspec",
            "max_model_len": self._services.router.max_model_len,
        }


def build_app(services: Services) -> FastAPI:
    """The ASGI application; its lifespan runs the router."""
    metrics = GatewayMetrics(services.snapshot)
    app = FastAPI(title="starspec", version=__version__, lifespan=_lifespan(services), docs_url=None, redoc_url=None)
    _add_routes(app, Routes(services, metrics))
    _add_error_handlers(app)
    app.add_middleware(BodyLimitMiddleware, max_bytes=services.config.max_body_bytes)
    if services.config.api_key is not None:
        app.add_middleware(ApiKeyMiddleware, api_key=services.config.api_key)
    app.add_middleware(DrainMiddleware, drain=services.drain)
    app.add_middleware(MetricsMiddleware, metrics=metrics)  # added last = outermost, so it counts refused requests too
    return app


def _add_routes(app: FastAPI, routes: Routes) -> None:
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
        "/tokenize": routes.tokenize,
        "/detokenize": routes.detokenize,
    }
    for path, endpoint in gets.items():
        app.add_api_route(path, endpoint, methods=["GET"], response_model=None)
    for method in ("GET", "POST"):  # as vLLM. Two routes, since one has one id in the OpenAPI description
        app.add_api_route("/ping", routes.of_health.ping, methods=[method], response_model=None)
    for path, endpoint in posts.items():
        app.router.add_api_route(path, endpoint, methods=["POST"], response_model=None, route_class_override=JsonRoute)


def _add_error_handlers(app: FastAPI) -> None:
    async def answer(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the framework's signature)
        response = http_error_of(error).response()
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    for kind in (StarspecError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _lifespan(services: Services) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 (the framework's signature)
        async with services.router:
            watching = asyncio.create_task(run_forever(services.hub.run)) if services.hub else None
            try:
                yield
            finally:
                if watching is not None:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
                services.codec.close()

    return run
