"""How tasks share the gateway's event loop: those in the background, and those with many steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

PAUSE_S: Final = 1.0
STEPS: Final = 16  # of a task in one turn of the loop; a step takes a millisecond at worst

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


class Pace:
    """For a loop that may find everything ready and never wait: others get their turn after each STEPS steps."""

    def __init__(self) -> None:
        self._num_steps = 0

    async def step(self) -> None:
        """Call it once a step. It may be cancelled, so no event must be in hand."""
        self._num_steps += 1
        if self._num_steps % STEPS == 0:
            await asyncio.sleep(0)
