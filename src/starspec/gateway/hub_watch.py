"""The hub's status as the gateway last heard it, for /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from starspec.errors import LinkError
from starspec.wire.messages import HubStatus

INTERVAL_S: Final = 1.0

log = structlog.get_logger()

AskHub = Callable[[], Awaitable[HubStatus]]
"""One question to the hub's public port. Raises: LinkError if it does not answer in time."""


class HubWatch:
    """Asks now and then; `status` is None while the hub does not answer. The gateway works without it."""

    def __init__(self, ask: AskHub) -> None:
        self._ask = ask
        self.status: HubStatus | None = None

    async def run(self) -> None:
        """Watch, for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(INTERVAL_S)

    async def refresh(self) -> None:
        """Ask once."""
        try:
            self.status = await self._ask()
        except LinkError as error:
            if self.status is not None:
                log.warning("the hub does not answer", why=str(error))
            self.status = None
