"""Graceful shutdown: requests in flight end, and new ones get 503 while the port stays open."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from starspec.gateway.http_errors import HttpError
from starspec.policy.retry_after import STOPPING_S

UNDRAINED_PATHS: Final = frozenset({"/metrics"})  # the last scrape should count the last answers
REFUSAL: Final = HttpError(503, "the gateway is shutting down and takes no new requests", retry_after_s=STOPPING_S)
CANCELLED: Final = HttpError(503, "the gateway was shut down before the answer was finished", retry_after_s=STOPPING_S)


class Drain:
    """Whether the gateway was asked to stop, and whether it may stop now.

    Args:
        timeout_s: how long requests in flight may continue after that.
        clock: seconds, monotonic.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._over_at_s = math.inf
        self._num_asked = 0
        self.num_in_flight = 0

    def ask(self) -> None:
        """Start to drain. A second call does not wait. Callable from another thread or a signal handler."""
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
        """Whether no request is in flight any more, or the drain does not wait for those that are."""
        return self.is_begun and (self.is_impatient or not self.num_in_flight or self._clock() >= self._over_at_s)


class DrainMiddleware:
    """ASGI middleware that counts requests in flight, and answers 503 to new ones while the gateway drains.

    A request that is cancelled at the end of the drain gets 503 too, unless its response has started.
    """

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNDRAINED_PATHS:
            await self._app(scope, receive, send)
            return
        if self._drain.is_begun:
            await REFUSAL.response()(scope, receive, closing(send))
            return
        has_started = False

        async def tracking_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        self._drain.num_in_flight += 1
        try:
            await self._app(scope, receive, tracking_send)
        except asyncio.CancelledError:
            if has_started or not self._drain.is_over:
                raise
            await CANCELLED.response()(scope, receive, closing(send))
        finally:
            self._drain.num_in_flight -= 1


def closing(send: Send) -> Send:
    """Add `Connection: close`, so that the client's next connection may reach another gateway."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await send(message)

    return send_and_close
