"""uvicorn as the gateway runs it: a socket bound before anything starts, a drain before it exits, one log.

It accepts its connections itself, one by one. asyncio's own loop accepts as many as wait; when descriptors run out, it
logs each failure and does not stop to try, thousands of times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import uvicorn

from starspec.gateway.background import run_forever
from starspec.gateway.checks import open_port
from starspec.gateway.connections import ConnectionTable
from starspec.gateway.drain import Drain
from starspec.gateway.http_protocol import GatewayProtocol, NoteRefusal, Timeouts
from starspec.log_limit import LogLimit

ACCEPT_PAUSE_S: Final = 0.2  # after a failure to accept; the kernel keeps those who wait
SPARE_DESCRIPTORS: Final = 16  # for links to targets and hub, and for connections that are being refused
UVICORN_LOGGER: Final = "uvicorn.error"  # of its server and protocols; carries errors and everything else
ALREADY_LOGGED: Final = "Exception in ASGI application"  # `http_error_of` has logged it, or it is the end of a drain

log = structlog.get_logger()


class DrainingServer(uvicorn.Server):
    """Closes its port at the end of a drain, not at the beginning. Its connections are bounded and have deadlines.

    Leaves signals to the process that runs it: a drained gateway exits with 0.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        table: ConnectionTable,
        timeouts: Timeouts,
        log_limit: LogLimit,
        note_refusal: NoteRefusal,
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._table = table
        self._timeouts = timeouts
        self._log_limit = log_limit
        self._note_refusal = note_refusal
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        accept = [partial(self._accept, each) for each in sockets or []]
        self._accepting = [asyncio.create_task(run_forever(each)) for each in accept]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
                await loop.connect_accepted_socket(self._make_protocol, connected)
            except ConnectionError:
                continue  # the client left before it was accepted
            except OSError as error:
                event = "the gateway cannot accept a connection; raise the limit of open files (ulimit -n)"
                self._log_limit.log(log.warning, event, why=str(error))
                await asyncio.sleep(ACCEPT_PAUSE_S)  # the last one that was accepted has time to send its request
                self._table.make_room()

    def _make_protocol(self) -> GatewayProtocol:
        return GatewayProtocol(
            self._table,
            self._timeouts,
            self._note_refusal,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

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
    """Errors stay errors, a few of a kind at a time. Malformed HTTP and uvicorn's progress are logged at debug."""

    def __init__(self, log_limit: LogLimit) -> None:
        super().__init__()
        self._log_limit = log_limit

    def emit(self, record: logging.LogRecord) -> None:
        sentence = record.getMessage().strip()
        if record.levelno < logging.ERROR or sentence == ALREADY_LOGGED:
            log.debug("uvicorn", says=sentence)
        else:
            self._log_limit.log(log.error, sentence, kind=str(record.msg), exc_info=record.exc_info or None)


def redirect_uvicorn_log(log_limit: LogLimit) -> None:
    """Effects: uvicorn's log records of this process go to structlog and nowhere else. Idempotent."""
    logger = logging.getLogger(UVICORN_LOGGER)
    logger.handlers = [_ToStructlog(log_limit)]
    logger.propagate = False
    logger.setLevel(logging.INFO)


def listen(host: str, port: int, *, has_key: bool) -> socket.socket:
    """As `open_port`. Effects: warns when the interface is not loopback: HTTP here is plain text.

    Args:
        has_key: requests need an API key.
    """
    listening = open_port(host, port)
    if not ipaddress.ip_address(listening.getsockname()[0]).is_loopback:
        advice = "put TLS in front of it" if has_key else "put TLS in front of it and set an API key"
        log.warning(f"the gateway speaks plain HTTP to other machines: {advice}", host=host)
    return listening


def affordable_connections(asked: int) -> int:
    """As many connections as are asked for, or as the descriptors of this process allow.

    Effects: warns if that is fewer.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = soft - len(list(Path("/proc/self/fd").iterdir())) - SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or spare >= asked:
        return asked
    log.warning(
        "the limit of open files allows fewer connections than --max-connections; raise it (ulimit -n)",
        limit=soft,
        max_connections=max(1, spare),
    )
    return max(1, spare)
