"""The routes of the dashboard: the page's files, the star as one JSON object, and a stream of it."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from starspec.gateway.dashboard.feed import StarFeed
from starspec.gateway.dashboard.page import PAGE_FILES
from starspec.gateway.drain import Drain
from starspec.gateway.recent import Recent
from starspec.gateway.stream import HEADERS, until_disconnect


class DashboardRoutes:
    """One method for each route."""

    def __init__(self, feed: StarFeed, drain: Drain, clock: Callable[[], float]) -> None:
        self._feed = feed
        self._drain = drain
        self._state = Recent(feed.whole, clock)

    def add_to(self, app: FastAPI) -> None:
        """They are not in the OpenAPI description: whoever reads them is of one release with the gateway."""
        routes = {"/dashboard/state": self.state, "/dashboard/events": self.events}
        for path, endpoint in (routes | dict.fromkeys(PAGE_FILES, self.file)).items():
            app.add_api_route(path, endpoint, methods=["GET"], response_model=None, include_in_schema=False)

    async def file(self, request: Request) -> Response:
        return PAGE_FILES[request.scope["path"]].response()

    async def state(self) -> Response:
        """The star, and its last ten minutes."""
        return Response(self._state.get(), media_type="application/json", headers={"cache-control": "no-store"})

    async def events(self) -> Response:
        """The star, twice a second, as server-sent events."""
        return _LiveStar(self._feed, self._drain)


class _LiveStar(Response):
    """Streams the views of a star until the client leaves or the gateway stops."""

    def __init__(self, feed: StarFeed, drain: Drain) -> None:
        super().__init__()
        self._feed = feed
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (of ASGI)
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await until_disconnect(self._stream(send), receive)

    async def _stream(self, send: Send) -> None:
        while not self._drain.is_begun:
            event = b"data: " + await self._feed.next_frame() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
