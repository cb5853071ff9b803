"""What is checked before a route runs: the API key, the size of the body, and that the body is JSON."""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from starspec.errors import RequestError
from starspec.gateway.http_errors import HttpError, dotted

KEYLESS_PATHS: Final = frozenset({"/health", "/health/ready", "/ping"})  # load balancers have no key


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


class JsonRoute(APIRoute):
    """A route whose body is parsed by `parse_body`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse_body(await self.body())


def parse_body(body: bytes) -> Any:
    """Parse a JSON body, as json.loads does.

    Raises: JSONDecodeError if the body is not JSON. RequestError if it is in no Unicode encoding, or if it contains an
        integer of more digits than Python converts (4300, a guard against quadratic time); the error names the
        parameter that contains the integer.
    """
    try:
        return json.loads(body)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise RequestError("the body is not valid JSON: it must be UTF-8") from error
    except ValueError as error:
        path = _path_to_long_integer(json.loads(body, parse_int=_integer))
        param = dotted(path or ()) or None
        raise RequestError(f"{param or 'the body'} has an integer of too many digits", param) from error


class _LongInteger:
    """Stands for an integer that Python refuses to convert."""


def _integer(digits: str) -> int | _LongInteger:
    limit = sys.get_int_max_str_digits()
    return _LongInteger() if limit and len(digits.lstrip("-")) > limit else int(digits)


def _path_to_long_integer(value: Any) -> tuple[str | int, ...] | None:
    """Keys and indices that lead to the first _LongInteger; None if there is none."""
    if isinstance(value, _LongInteger):
        return ()
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, each in inner:
        path = _path_to_long_integer(each)
        if path is not None:
            return (key, *path)
    return None
