"""uvicorn as the gateway runs it: a socket bound before anything starts, a drain before it exits, one log."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import socket
from collections.abc import Iterator
from typing import Final

import structlog
import uvicorn

from starspec.errors import ConfigError
from starspec.gateway.drain import Drain

BACKLOG: Final = 1024  # connections that wait to be accepted
UVICORN_LOGGER: Final = "uvicorn.error"  # of its server and protocols; carries errors and everything else
ALREADY_LOGGED: Final = "Exception in ASGI application"  # `http_error_of` has logged it, or it is the end of a drain

log = structlog.get_logger()


class DrainingServer(uvicorn.Server):
    """Closes its port at the end of a drain, not at the beginning.

    Leaves signals to the process that runs it: a drained gateway exits with 0.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second. Effects: at the end of the drain, cancels what is still in flight."""
        if self._drain.is_over:
            self.should_exit = True  # not force_exit: it would leave the lifespan's tasks running on closed links
            if self.server_state.tasks:
                log.warning(
                    "the drain timeout is over: answers in flight are cancelled",
                    num_requests=self._drain.num_in_flight,
                )
            for task in self.server_state.tasks:
                task.cancel()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _ToStructlog(logging.Handler):
    """Errors stay errors. Malformed HTTP, upgrade requests and uvicorn's progress are logged at debug level."""

    def emit(self, record: logging.LogRecord) -> None:
        sentence = record.getMessage().strip()
        if record.levelno < logging.ERROR or sentence == ALREADY_LOGGED:
            log.debug("uvicorn", says=sentence)
        else:
            log.error(sentence, exc_info=record.exc_info or None)


def redirect_uvicorn_log() -> None:
    """Effects: uvicorn's log records of this process go to structlog and nowhere else. Idempotent."""
    logger = logging.getLogger(UVICORN_LOGGER)
    logger.handlers = [_ToStructlog()]
    logger.propagate = False
    logger.setLevel(logging.INFO)


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    Args:
        port: 0 = any free one.
    Raises: ConfigError that says what to do if the port is taken or the interface does not exist.
    Effects: warns when the interface is not loopback: HTTP here is plain text.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(_why_not_listening(error, host, port)) from error
    listening.setblocking(False)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by connections: chunks go out at once
    if not ipaddress.ip_address(listening.getsockname()[0]).is_loopback:
        log.warning("the gateway speaks plain HTTP to other machines; put TLS before it and set an api key", host=host)
    return listening


def _why_not_listening(error: OSError, host: str, port: int) -> str:
    what = f"the gateway cannot listen on {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{what}: the port is in use; stop the process that listens there or choose another"
    if error.errno == errno.EACCES:
        return f"{what}: choose a port above 1023"
    return f"{what}: {error.strerror}"
