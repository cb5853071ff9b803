"""What uvicorn says, in the gateway's own log: ordinary events of HTTP are no alarms, and nothing is said twice."""

from __future__ import annotations

import logging
from typing import Final

import structlog

UVICORN: Final = "uvicorn.error"  # the logger of its server and protocols, of errors and of everything else
TOLD_ALREADY: Final = "Exception in ASGI application"  # `fault_of` has logged it, or it is the end of a drain

log = structlog.get_logger()


class _ToStructlog(logging.Handler):
    """Errors stay errors; clients that speak no HTTP or want upgrades, and uvicorn's progress, are for debugging."""

    def emit(self, record: logging.LogRecord) -> None:
        sentence = record.getMessage().strip()
        if record.levelno < logging.ERROR or sentence == TOLD_ALREADY:
            log.debug("uvicorn", says=sentence)
        else:
            log.error(sentence, exc_info=record.exc_info or None)


def take_uvicorns_log() -> None:
    """Effects: uvicorn's records of this process go to structlog and nowhere else. Idempotent."""
    logger = logging.getLogger(UVICORN)
    logger.handlers = [_ToStructlog()]
    logger.propagate = False
    logger.setLevel(logging.INFO)
