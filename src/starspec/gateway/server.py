"""The gateway as a process: one event loop with uvicorn in it, on one socket that is bound before anything starts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import structlog
import uvicorn

from starspec.config import GatewayConfig
from starspec.errors import ConfigError
from starspec.fingerprint import vocab_fingerprint
from starspec.gateway.app import Services, build_app
from starspec.gateway.defaults import GenerationDefaults, read_generation_defaults
from starspec.gateway.dial import Connections, Dial, dial_of
from starspec.gateway.drain import Drain
from starspec.gateway.http_log import take_uvicorns_log
from starspec.gateway.hub_watch import HubWatch
from starspec.gateway.identity import Identity, identity_of
from starspec.gateway.prompts import PromptCodec
from starspec.gateway.router import Router
from starspec.gateway.translate import Translator
from starspec.models.loading.locate import is_synthetic, locate
from starspec.models.loading.tokenizer import eos_token_ids, load_tokenizer

BACKLOG: Final = 1024  # connections that wait to be accepted
CLOSE_S: Final = 1  # to say the last words on connections that are still open

log = structlog.get_logger()


class GatewayServer:
    """Serves HTTP until it is stopped.

    Args:
        config: where to listen, what to reach, and which model's tokenizer to use.
        dial: makes the connections; None = over ZeroMQ to `config.targets` and `config.hub`.
    Raises: ConfigError for a taken port or an address that cannot or must not be reached; ModelError if the tokenizer
        cannot be read.
    """

    def __init__(self, config: GatewayConfig, dial: Dial | None = None) -> None:
        self._config = config
        self._dial = dial if dial is not None else dial_of(config)
        self._model = load_model_side(config)
        self._socket = listen(config.host, config.port)
        self._drain = Drain(config.shutdown_timeout_s)

    @property
    def address(self) -> str:
        """`http://host:port`, with the port that was really taken."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def memory(self) -> str:
        """A gateway keeps nothing for sequences."""
        return ""

    def run(self) -> None:
        """Serve until `stop`, then until the answers in flight are done or the time is over."""
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """As `run`, inside a running loop."""
        connections = self._dial()
        try:
            server = self._make_uvicorn(connections)
            log.info("gateway listening", address=self.address)
            await server.serve(sockets=[self._socket])
        finally:
            connections.close()

    def stop(self) -> None:
        """Refuse new requests, let the answers in flight end. A second call does not wait for them.

        Callable from another thread or a signal handler.
        """
        self._drain.ask()

    def close(self) -> None:
        """Free the port of a server that never ran."""
        self._socket.close()

    def _make_uvicorn(self, connections: Connections) -> _Uvicorn:
        services = Services(
            config=self._config,
            identity=self._model.identity,
            router=Router(connections.links),
            codec=self._model.codec,
            translator=Translator(self._model.codec, self._model.defaults),
            drain=self._drain,
            hub=HubWatch(connections.ask_hub) if connections.ask_hub is not None else None,
        )
        config = uvicorn.Config(
            build_app(services),
            lifespan="on",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_S,
        )
        take_uvicorns_log()  # after uvicorn.Config, which sets levels of its own
        return _Uvicorn(config, self._drain)


class _Uvicorn(uvicorn.Server):
    """Closes its port at the end of a drain, not at its beginning.

    Leaves signals to whoever runs the process: a drained gateway exits with 0.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second. Effects: at the end of the drain, cancels what is still in flight."""
        if self._drain.is_over:
            self.should_exit = True  # not force_exit, which leaves the lifespan's tasks at work on closed links
            if self.server_state.tasks:
                log.warning("the time to drain is over: answers are broken off", num_requests=self._drain.num_in_flight)
            for task in self.server_state.tasks:
                task.cancel()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class ModelSide:
    """What a gateway knows of the model: no weights."""

    identity: Identity
    codec: PromptCodec
    defaults: GenerationDefaults


def load_model_side(config: GatewayConfig) -> ModelSide:
    """Read tokenizer and defaults. Effects: logs which generation defaults apply."""
    tokenizer = load_tokenizer(config.model)
    folder = None if is_synthetic(config.model) else locate(config.model)
    defaults = GenerationDefaults()
    if folder is not None and config.generation_config == "auto":
        defaults = read_generation_defaults(folder)
    log.info("generation defaults of the model", applied=str(defaults), generation_config=config.generation_config)
    ends = eos_token_ids(folder, tokenizer) if folder is not None else (tokenizer.eos_token_id,)
    identity = identity_of(config, vocab_fingerprint(tokenizer), str(defaults))
    return ModelSide(identity, PromptCodec(tokenizer, ends), defaults)


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
