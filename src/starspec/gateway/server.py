"""The gateway as a process: one event loop with uvicorn in it, on one socket that is bound before anything starts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog
import uvicorn

from starspec.config import GatewayConfig
from starspec.errors import ConfigError
from starspec.gateway.app import Services, build_app
from starspec.gateway.defaults import GenerationDefaults, read_generation_defaults
from starspec.gateway.hub_watch import AskHub, HubWatch
from starspec.gateway.identity import identity_of
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.router import Router, TargetLink
from starspec.gateway.translate import Translator
from starspec.models.locate import is_synthetic, locate
from starspec.models.vocabulary import eos_token_ids, load_tokenizer, vocab_fingerprint

BACKLOG: Final = 1024  # connections that wait to be accepted

log = structlog.get_logger()


class GatewayServer:
    """Serves HTTP until it is stopped.

    Args:
        config: where to listen, and which model's tokenizer to use.
        links: one for each target; the server closes them.
        ask_hub: how to ask the hub for its status; None leaves the hub out of /metrics.
    Raises: ConfigError if the port is taken; ModelError if the tokenizer cannot be read.
    """

    def __init__(self, config: GatewayConfig, links: Sequence[TargetLink], ask_hub: AskHub | None = None) -> None:
        services = load_services(config, links, ask_hub)
        self._socket = listen(config.host, config.port)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                build_app(services),
                lifespan="on",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(config.shutdown_timeout_s)),
            )
        )

    @property
    def address(self) -> str:
        """`http://host:port`, with the port that was really taken."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serve until `stop`, SIGINT or SIGTERM, then until the answers in flight are done or the time is over."""
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """As `run`, inside a running loop."""
        with _signals(self.stop):
            log.info("gateway listening", address=self.address)
            await self._uvicorn.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Take no more connections, let the answers in flight end. A second call does not wait. Thread-safe."""
        if self._uvicorn.should_exit:
            self._uvicorn.force_exit = True
        self._uvicorn.should_exit = True

    def close(self) -> None:
        """Free the port of a server that never ran."""
        self._socket.close()


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the process that it runs in: a drained gateway exits with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def load_services(config: GatewayConfig, links: Sequence[TargetLink], ask_hub: AskHub | None) -> Services:
    """Everything that the routes need. Effects: logs which generation defaults apply."""
    tokenizer = load_tokenizer(config.model)
    folder = None if is_synthetic(config.model) else locate(config.model)
    defaults = GenerationDefaults()
    if folder is not None and config.generation_config == "auto":
        defaults = read_generation_defaults(folder)
    log.info("generation defaults of the model", applied=str(defaults), generation_config=config.generation_config)
    ends = eos_token_ids(folder, tokenizer) if folder is not None else (tokenizer.eos_token_id,)
    codec = PromptCodec(tokenizer, ends)
    return Services(
        config=config,
        identity=identity_of(config, vocab_fingerprint(tokenizer), str(defaults)),
        router=Router(links),
        codec=codec,
        translator=Translator(codec, defaults),
        hub=HubWatch(ask_hub) if ask_hub is not None else None,
    )


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
        return f"{what}: the port is in use; stop who listens there or choose another"
    if error.errno == errno.EACCES:
        return f"{what}: choose a port above 1023"
    return f"{what}: {error.strerror}"


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop`; only a main thread can have that, others are stopped by whoever runs them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
