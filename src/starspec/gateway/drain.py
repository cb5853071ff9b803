"""Stopping in good order: what is in flight ends, what is new is sent elsewhere, and the port stays open to say so."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from starspec.gateway.http_errors import HttpError

UNDRAINED_PATHS: Final = frozenset({"/metrics"})  # a scrape that misses the end of a drain misses its last answers
REFUSAL: Final = HttpError(503, "the gateway is shutting down and takes no new requests", retry_after_s=1.0)
BROKEN_OFF: Final = HttpError(503, "the gateway was shut down before the answer was finished", retry_after_s=1.0)


class Drain:
    """Whether the gateway is asked to stop, and whether it may.

    Args:
        timeout_s: what is in flight when it is asked may go on for so long.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._over_at_s = math.inf
        self._num_asked = 0
        self.num_in_flight = 0

    def ask(self) -> None:
        """Begin to drain; asked again, wait no longer. Callable from another thread or a signal handler."""
        self._num_asked += 1
        self._over_at_s = min(self._over_at_s, self._clock() + self._timeout_s)

    @property
    def is_begun(self) -> bool:
        return self._num_asked > 0

    @property
    def is_impatient(self) -> bool:
        return self._num_asked > 1

    @property
    def is_over(self) -> bool:
        """Whether nothing is in flight any more, or is waited for."""
        return self.is_begun and (self.is_impatient or not self.num_in_flight or self._clock() >= self._over_at_s)


class DrainMiddleware:
    """ASGI middleware: counts what is in flight, and while the gateway drains answers 503 to everything else.

    What is cancelled because the drain is over answers 503 too, unless it has said something already.
    """

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNDRAINED_PATHS:
            await self._app(scope, receive, send)
            return
        if self._drain.is_begun:
            await REFUSAL.response()(scope, receive, _closing(send))
            return
        has_started = False

        async def noted(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        self._drain.num_in_flight += 1
        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if has_started or not self._drain.is_over:
                raise
            await BROKEN_OFF.response()(scope, receive, _closing(send))
        finally:
            self._drain.num_in_flight -= 1


def _closing(send: Send) -> Send:
    """The same, but for telling the client that its connection ends: the next one may reach another gateway."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return send_and_close
