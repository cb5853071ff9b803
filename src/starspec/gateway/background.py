"""Background tasks of the gateway. A task that ends with an error is run again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

PAUSE_S: Final = 1.0

log = structlog.get_logger()


async def run_forever(run: Callable[[], Awaitable[None]]) -> None:
    """Run a task until it is cancelled. If it ends with an exception, log it and run the task again."""
    while True:
        try:
            await run()
        except Exception:
            log.exception(
                "a background task of the gateway failed; it is restarted", task=getattr(run, "__qualname__", "?")
            )
        await asyncio.sleep(PAUSE_S)
