"""Turns exceptions into error responses: `{"error": {message, type, param, code}}` and an HTTP status."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Final

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response

from starspec.errors import CapacityError, LinkError, OurBug, PeerProtocolError, RequestError, RequestTimedOut
from starspec.log_limit import LogLimit
from starspec.policy.retry_after import LOST_S, whole_seconds
from starspec.quoting import shortened

CLIENT_LEFT: Final = 499  # no client sees it; it makes disconnects visible in the counters
MAX_MESSAGE: Final = 1000  # characters of an error in all
TYPES: Final = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}
UNEXPECTED: Final = LogLimit(time.monotonic)

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
        param = None if self.param is None else shortened(self.param)
        error = {"message": shortened(self.message, MAX_MESSAGE), "type": kind, "param": param, "code": self.status}
        return json.dumps({"error": error}).encode("ascii")

    def headers(self) -> dict[str, str]:
        """The headers of the response that say what to do."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(whole_seconds(self.retry_after_s))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers(), media_type="application/json")


def http_error_of(error: Exception, queue_s: float = 0.0) -> HttpError:
    """The error response for an exception.

    Args:
        queue_s: how long the queue will take, for a client that found it full.

    It does not quote an unexpected exception, whose text may contain paths or prompts.

    Effects: logs unexpected exceptions, not more than a few of a kind at a time.
    """
    match error:
        case RequestError():
            return HttpError(error.status, str(error), error.param)
        case CapacityError():
            return HttpError(503, str(error), None, max(error.retry_after_s, queue_s))
        case LinkError():
            makes_sense = not isinstance(error, PeerProtocolError)
            return HttpError(503 if makes_sense else 502, str(error), None, LOST_S if makes_sense else None)
        case RequestTimedOut():
            return HttpError(504, str(error))
        case HTTPException():
            return HttpError(error.status_code, str(error.detail))
    is_of_target = isinstance(error, OurBug)  # whose log has the traceback
    details = {"why": str(error)} if is_of_target else {"exc_info": error}
    UNEXPECTED.log(log.error, "a request failed", kind=type(error).__name__, **details)
    return HttpError(500, str(error) if is_of_target else "internal error; the gateway's log says more")
