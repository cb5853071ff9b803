"""The HTTP routes. Each reads: translate the request, generate, deliver."""

from __future__ import annotations

import asyncio
import secrets
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
from starspec.gateway.body import JsonRoute
from starspec.gateway.drain import Drain, DrainGuard
from starspec.gateway.faults import Fault, fault_of
from starspec.gateway.generation import Generation
from starspec.gateway.guards import BodyGuard, KeyGuard
from starspec.gateway.hub_watch import HubWatch
from starspec.gateway.identity import Identity
from starspec.gateway.kept_alive import kept_alive
from starspec.gateway.meters import Meters, RequestMeter, Stopwatch
from starspec.gateway.order import Order
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.router import Router
from starspec.gateway.schema import (
    ChatCompletionRequest,
    ChatPrompt,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from starspec.gateway.shapes import ChatShape, CompletionShape, Envelope, Shape
from starspec.gateway.stream import Delivery, EventStream, until_disconnect
from starspec.gateway.translate import Translator
from starspec.gateway.unsupported import refuse_unsupported
from starspec.observe.metrics import StatusSnapshot

CLIENT_LEFT: Final = 499  # nobody reads it; it makes disconnects visible in the counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes work with."""

    config: GatewayConfig
    identity: Identity
    router: Router
    codec: PromptCodec
    translator: Translator
    drain: Drain
    hub: HubWatch | None = None

    def snapshot(self) -> StatusSnapshot:
        return StatusSnapshot(self.router.statuses, self.hub.status if self.hub else None)


class Routes:
    """One method a route."""

    def __init__(self, services: Services, meters: Meters) -> None:
        self._services = services
        self._meters = meters

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        self._check_model(body.model)
        stopwatch = Stopwatch(self._meters)
        order = await self._services.translator.completion(body, self._services.router.max_model_len)
        shape = CompletionShape(order.options, self._services.codec.tokens)
        return await self._deliver(order, shape, f"cmpl-{secrets.token_hex(16)}", request, stopwatch)

    async def chat_completions(self, body: ChatCompletionRequest, request: Request) -> Response:
        self._check_model(body.model)
        stopwatch = Stopwatch(self._meters)
        order = await self._services.translator.chat(body, self._services.router.max_model_len)
        shape = ChatShape(order.options, self._services.codec.tokens)
        return await self._deliver(order, shape, f"chatcmpl-{secrets.token_hex(16)}", request, stopwatch)

    async def models(self) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, model_id: str) -> Response:
        self._check_model(model_id)
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

    async def health(self) -> Response:
        if not self._services.router.statuses:
            return Fault(503, "no target is connected", retry_after_s=1.0).response()
        return JSONResponse({"status": "ok", "num_targets": len(self._services.router.statuses)})

    async def metrics(self) -> Response:
        return Response(generate_latest(self._meters.registry), media_type=CONTENT_TYPE_LATEST)

    async def version(self) -> Response:
        return JSONResponse({"version": __version__})

    async def _deliver(
        self, order: Order, shape: Shape, reply_id: str, request: Request, stopwatch: Stopwatch
    ) -> Response:
        identity = self._services.identity
        generation = Generation(self._services.router, order, reply_id)
        envelope = Envelope(reply_id, identity.model, identity.fingerprint, shape)
        delivery = Delivery(order, generation, envelope, stopwatch)
        if order.options.is_stream:
            return EventStream(delivery, self._services.config.keep_alive_s)
        reply = await until_disconnect(delivery.whole(), request.receive)
        if reply is None:
            stopwatch.abandon()
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
    meters = Meters(services.snapshot)
    app = FastAPI(title="starspec", version=__version__, lifespan=_lifespan(services), docs_url=None, redoc_url=None)
    _add_routes(app, Routes(services, meters))
    _add_fault_handlers(app)
    app.add_middleware(BodyGuard, max_bytes=services.config.max_body_bytes)
    if services.config.api_key is not None:
        app.add_middleware(KeyGuard, api_key=services.config.api_key)
    app.add_middleware(DrainGuard, drain=services.drain)
    app.add_middleware(RequestMeter, meters=meters)  # added last = outermost: it counts refusals too
    return app


def _add_routes(app: FastAPI, routes: Routes) -> None:
    gets: dict[str, Callable[..., Any]] = {
        "/v1/models": routes.models,
        "/v1/models/{model_id:path}": routes.model,
        "/health": routes.health,
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
    for path, endpoint in posts.items():
        app.router.add_api_route(path, endpoint, methods=["POST"], response_model=None, route_class_override=JsonRoute)


def _add_fault_handlers(app: FastAPI) -> None:
    async def answer(request: Request, error: Exception) -> Response:  # noqa: ARG001 (the framework's signature)
        response = fault_of(error).response()
        if isinstance(error, HTTPException) and error.headers:
            response.headers.update(error.headers)
        return response

    for kind in (StarspecError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _lifespan(services: Services) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def run(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 (the framework's signature)
        async with services.router:
            watching = asyncio.create_task(kept_alive(services.hub.run)) if services.hub else None
            try:
                yield
            finally:
                if watching is not None:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
                services.codec.close()

    return run
