"""What stands before every route: the API key and the limit on the body, as plain ASGI."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from starspec.gateway.faults import Fault

KEYLESS_PATHS: Final = frozenset({"/health"})  # load balancers have no key


class KeyGuard:
    """Lets a request pass if it carries `Authorization: Bearer <api_key>`, else answers 401."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in KEYLESS_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        fault = Fault(401, "a valid API key is required: `Authorization: Bearer <key>`")
        await fault.response()(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given, self._expected)


class BodyGuard:
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
            await Fault(413, self._sentence()).response()(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413, self._sentence())
            return message

        await self._app(scope, counted, send)

    def _sentence(self) -> str:
        return f"the body exceeds the limit of {self._max_bytes} bytes"
