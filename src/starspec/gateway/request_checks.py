"""What is checked before a route runs: the API key, and the framing and size of the body."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from starspec.gateway.dashboard.page import PAGE_FILES
from starspec.gateway.drain import closing
from starspec.gateway.http_errors import HttpError

# load balancers have no key, and a browser has none before it has the page, which asks for it
KEYLESS_PATHS: Final = frozenset({"/health", "/health/ready", "/ping", *PAGE_FILES})


class ApiKeyMiddleware:
    """Answers 401 to a request that does not carry `Authorization: Bearer <api_key>`."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in KEYLESS_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        error = HttpError(401, "a valid API key is required: `Authorization: Bearer <key>`")
        await error.response()(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given, self._expected)


class FramingMiddleware:
    """Answers 400 to a request whose body has two lengths: a proxy may read another one than this server (RFC 9112)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and {"content-length", "transfer-encoding"} <= {*Headers(scope=scope)}:
            error = HttpError(400, "send either Content-Length or Transfer-Encoding, not both")
            await error.response()(scope, receive, closing(send))
            return
        await self._app(scope, receive, send)


class BodyLimitMiddleware:
    """Answers 413 to a body above `max_bytes`, before it is parsed, and before it is read if its length is declared."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await HttpError(413, self._complaint()).response()(scope, receive, send)
            return
        num_bytes = 0

        async def counting_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413, self._complaint())
            return message

        await self._app(scope, counting_receive, send)

    def _complaint(self) -> str:
        return f"the body exceeds the limit of {self._max_bytes} bytes"
