"""Background tasks of the gateway that must not end in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

PAUSE_S: Final = 1.0

log = structlog.get_logger()


async def kept_alive(run: Callable[[], Awaitable[None]]) -> None:
    """Run something for ever: if a fault of ours ends it, say so and begin again. Ends by cancellation only."""
    while True:
        try:
            await run()
        except Exception:
            log.exception("a task of the gateway failed and is begun again", task=getattr(run, "__qualname__", "?"))
        await asyncio.sleep(PAUSE_S)
