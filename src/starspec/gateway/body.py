"""A request's JSON body as Python values; what Python itself would not read is refused by the parameter's name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from starspec.errors import RequestError
from starspec.gateway.faults import dotted


class JsonRoute(APIRoute):
    """A route whose body is read by `parse_body`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        return parse_body(await self.body())


def parse_body(body: bytes) -> Any:
    """As json.loads.

    Raises: JSONDecodeError; RequestError for a body in no Unicode encoding, or naming the parameter that is or holds
        an integer of more digits than Python turns into a number (4300, a guard against its quadratic time).
    """
    try:
        return json.loads(body)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise RequestError("the body is no valid JSON: it must be UTF-8") from error
    except ValueError as error:
        place = _place_of_long_integer(json.loads(body, parse_int=_integer))
        param = dotted(place or ()) or None
        raise RequestError(f"{param or 'the body'} has an integer of too many digits", param) from error


class _LongInteger:
    """Stands for an integer that Python refuses to read."""


def _integer(digits: str) -> int | _LongInteger:
    limit = sys.get_int_max_str_digits()
    return _LongInteger() if limit and len(digits.lstrip("-")) > limit else int(digits)


def _place_of_long_integer(value: Any) -> tuple[str | int, ...] | None:
    """Keys and indices that lead to the first of them."""
    if isinstance(value, _LongInteger):
        return ()
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, each in inner:
        place = _place_of_long_integer(each)
        if place is not None:
            return (key, *place)
    return None
