"""From the bytes of a body to a checked request. Large bodies are read on a worker thread.

The json module's C parser keeps Python's lock until it is done, and the event loop would wait for it on any thread. So
the numbers of values, strings and containers are bounded, and bodies of many values or long numbers are parsed by the
json module's Python code, which lets other threads run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # not in typeshed
from typing import Any, Final, TypeVar

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from starspec.errors import RequestError
from starspec.gateway.http_errors import CLIENT_LEFT
from starspec.gateway.schema import Body
from starspec.quoting import shortened

MAX_VALUES: Final = 2**18  # of a body; a prompt as token ids has many
MAX_STRINGS: Final = 2**16  # keys included
MAX_CONTAINERS: Final = 2**14  # objects and lists
MAX_KEYS: Final = 256  # of the outermost object
MAX_BACKSLASHES: Final = 2**20  # in strings: the C parser stops at each, and a megabyte of them takes 20 ms
SMALL_BYTES: Final = 16 * 1024  # read at once, on the event loop, in a few milliseconds at worst
THE_BODY: Final = "the body"
ROUTES: Final = {"prompt": "/v1/completions", "messages": "/v1/chat/completions"}  # where each of them belongs
FEW_VALUES: Final = 2**13  # parsed in C in a few milliseconds at worst
FEW_NUMBER_BYTES: Final = 2**16  # likewise: a number of thousands of digits takes a tenth of a millisecond

T = TypeVar("T", bound=Body)


class JsonRoute(APIRoute):
    """A route that reads and checks its JSON body on `executor`, and then calls its endpoint with (body, request).

    Subclasses set `executor`; `readers` makes one.
    """

    executor: Executor

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        assert self.body_field is not None
        kind: type[Body] = self.body_field.field_info.annotation  # type: ignore[assignment]

        async def handle(request: Request) -> Response:
            try:
                body = await request.body()
            except ClientDisconnect:
                return Response(status_code=CLIENT_LEFT)
            if not is_json(request.headers.get("content-type", "")):
                raise RequestError("the body must be a JSON object, sent as application/json")
            if len(body) <= SMALL_BYTES:
                parsed = read_body(body, kind)
            else:
                parsed = await asyncio.get_running_loop().run_in_executor(self.executor, read_body, body, kind)
            response: Response = await self.endpoint(parsed, request)
            return response

        return handle


def readers(with_executor: Executor) -> type[JsonRoute]:
    """A JsonRoute class that reads bodies on that executor."""

    class Route(JsonRoute):
        executor = with_executor

    return Route


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def read_body(body: bytes, kind: type[T]) -> T:
    """Parse and check a body.

    Raises: RequestError that names the parameter at fault, if one is.
    """
    value = parse_body(body)
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object, sent as application/json")
    if len(value) > MAX_KEYS:
        raise RequestError(f"the body has {len(value)} parameters; a request has at most {MAX_KEYS}")
    _check_route(kind, value)
    return checked(kind, value)


def _check_route(kind: type[Body], value: Mapping[str, Any]) -> None:
    """Raises: RequestError that names the other route, if the body has a prompt for a chat, or a chat's messages."""
    for name, route in ROUTES.items():
        (own,) = ROUTES.keys() - {name}
        if value.get(name) is not None and name not in kind.model_fields and own in kind.model_fields:
            raise RequestError(f"{name}: for {route}: ask there, or send {own} here", name)


def checked(kind: type[T], value: Any, place: Sequence[str | int] = ()) -> T:
    """The value as that kind of object. Args: place: where in the body it is. Raises: as `read_body`."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _of_validation(error.errors(include_url=False, include_input=False), place) from None


def parse_body(body: bytes, what: str = THE_BODY) -> Any:
    """Parse a JSON body in UTF-8, or JSON inside of it. A byte order mark in front is ignored, as RFC 8259 permits.

    Args:
        what: it is, for the error's sentence.
    Raises: RequestError if the body is not JSON, is not UTF-8, is nested too deeply, has too many values, strings,
        containers or backslashes, or contains an integer of more digits than Python converts (4300, a guard against
        quadratic time); the error then names the parameter that contains the integer.
    """
    body = body.removeprefix(BOM_UTF8)
    text = _text_of(body, what)
    decoder = json.JSONDecoder if _is_soon_parsed(body, what) else _PatientDecoder
    try:
        return _parsed(text, what, decoder)
    except _TooManyDigits as error:
        path = _path_to_long_integer(_parsed(text, what, decoder, parse_int=_integer))
        param = shortened(dotted(path or ())) or None
        raise RequestError(f"{param or what} has an integer of too many digits", param) from error


def _parsed(text: str, what: str, decoder: type[json.JSONDecoder], **options: Any) -> Any:
    """Raises: RequestError if the text is not JSON or is nested too deeply; _TooManyDigits."""
    try:
        return json.loads(text, cls=decoder, **options)
    except json.JSONDecodeError as error:
        raise RequestError(f"{what} is not valid JSON: {error.msg} (character {error.pos})") from error
    except RecursionError as error:
        raise RequestError(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise _TooManyDigits from error


def _text_of(body: bytes, what: str) -> str:
    """The text of a body without a byte order mark. json.loads would also take UTF-16 and UTF-32, whose bytes nobody
    counts.

    Raises: RequestError if it is not UTF-8.
    """
    if not json.detect_encoding(body).startswith("utf-8"):  # all bytes of ASCII text in UTF-16 are UTF-8, too
        raise RequestError(f"{what} is not valid JSON: it must be UTF-8")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{what} is not valid JSON: it must be UTF-8") from error


def _is_soon_parsed(body: bytes, what: str) -> bool:
    """Whether C parses a body in a few milliseconds. It takes as long for megabytes to say so.

    Raises: RequestError if it has more values, strings, containers or backslashes than a request may have.
    """
    if len(body) <= FEW_VALUES:
        return True
    _check_number(what, "backslashes", body.count(b"\\"), MAX_BACKSLASHES)
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    _check_number(what, "strings", unescaped.count(b'"') // 2, MAX_STRINGS)
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    num_containers = outside_strings.count(b"{") + outside_strings.count(b"[")
    _check_number(what, "objects and lists", num_containers, MAX_CONTAINERS)
    num_values = outside_strings.count(b",") + 1
    _check_number(what, "values", num_values, MAX_VALUES)
    return num_values <= FEW_VALUES and len(outside_strings) <= FEW_NUMBER_BYTES


def _check_number(what: str, parts: str, number: int, most: int) -> None:
    if number > most:
        advice = ": send fewer or shorter prompts" if what == THE_BODY else ""
        raise RequestError(f"{what} has {number} {parts}; {most} are allowed{advice}")


class _PatientDecoder(json.JSONDecoder):
    """Parses in Python, so that other threads can run meanwhile."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scan_once = py_make_scanner(self)


class _TooManyDigits(Exception):
    """The text has an integer that Python refuses to convert; what is behind it was not looked at yet."""


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


def _of_validation(errors: Sequence[Any], place: Sequence[str | int]) -> RequestError:
    """The most specific error of a body, which names the parameter as in `messages[0].content`."""
    first = _most_specific(errors)
    param = shortened(dotted((*place, *first["loc"])))
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "missing":
        return RequestError(f"{param} is required", param)
    return RequestError(f"{param}: {message[:1].lower()}{message[1:]}", param)


def _most_specific(errors: Sequence[Any]) -> Any:
    """The error to report for the first field that has one.

    A field of a union type has one error for each branch. A list that is too long wins, because it is of the right type
    up to there; then the branch that matched furthest. A value out of range is nearer than a value of another type, and
    an object with a fault is nearer than a word that it is not.
    """

    def nearness(error: Any) -> tuple[bool, int, bool, bool]:
        places = [part for part in error["loc"] if isinstance(part, int)]
        is_too_long, branch = error["type"] == "too_long", str(error["loc"][-1]) if error["loc"] else ""
        is_of_type = not error["type"].endswith("_type")
        return is_too_long, (places[-1] if places else -1), is_of_type, not branch.startswith("literal[")

    field = errors[0]["loc"][:1]
    return max((error for error in errors if error["loc"][:1] == field), key=nearness)


def dotted(path: Sequence[str | int]) -> str:
    """`("messages", 0, "content", "str")` -> `messages[0].content`: names of union branches are left out."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "bool", "float"):
            name += f".{part}" if name else part
    return name
