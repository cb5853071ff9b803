"""Turns exceptions into error responses: `{"error": {message, type, param, code}}` and an HTTP status."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from starspec.errors import CapacityError, LinkError, RequestError

RETRY_AFTER_LOST_S: Final = 1.0  # a supervisor restarts a target within seconds
TYPES: Final = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error response."""

    status: int
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    def body(self) -> bytes:
        """The JSON of the response, or of the event that ends a failed stream. Always ASCII."""
        kind = TYPES.get(self.status, "BadRequestError" if self.status < 500 else "InternalServerError")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode("ascii")

    def response(self) -> Response:
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(self.body(), self.status, headers, media_type="application/json")


def http_error_of(error: Exception) -> HttpError:
    """The error response for an exception.

    It does not quote an unexpected exception, whose text may contain paths or prompts.

    Effects: logs unexpected exceptions.
    """
    if isinstance(error, HTTPException) and isinstance(error.__cause__, RequestError):
        error = error.__cause__  # the framework wraps exceptions of body parsing
    match error:
        case RequestError():
            return HttpError(error.status, str(error), error.param)
        case CapacityError():
            return HttpError(503, str(error), None, error.retry_after_s)
        case LinkError():
            return HttpError(503, str(error), None, RETRY_AFTER_LOST_S)
        case RequestValidationError():
            return _of_validation(error.errors())
        case HTTPException():
            return HttpError(error.status_code, str(error.detail))
    log.error("a request failed", exc_info=error)
    return HttpError(500, "internal error; the gateway's log says more")


def _of_validation(errors: Sequence[Any]) -> HttpError:
    """The most specific error of a body, which names the parameter as in `messages[0].content`."""
    first = _most_specific(errors)
    if first["type"] == "json_invalid":
        return HttpError(400, f"the body is not valid JSON: {first.get('ctx', {}).get('error', 'cannot be read')}")
    path = [part for part in first["loc"] if part != "body"]
    if not path:
        return HttpError(400, "the body must be a JSON object, sent as application/json")
    param = dotted(path)
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "missing":
        return HttpError(400, f"{param} is required", param)
    return HttpError(400, f"{param}: {message[:1].lower()}{message[1:]}", param)


def _most_specific(errors: Sequence[Any]) -> Any:
    """The error to report for the first field that has one.

    A field of a union type has one error for each branch. The branch that matched furthest wins, and a value out of
    range counts as nearer than a value of another type.
    """

    def nearness(error: Any) -> tuple[int, bool]:
        places = [part for part in error["loc"] if isinstance(part, int)]
        return (places[-1] if places else -1), not error["type"].endswith("_type")

    field = errors[0]["loc"][:2]
    return max((error for error in errors if error["loc"][:2] == field), key=nearness)


def dotted(path: Sequence[str | int]) -> str:
    """`("messages", 0, "content", "str")` -> `messages[0].content`: names of union branches are left out."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "bool", "float"):
            name += f".{part}" if name else part
    return name
