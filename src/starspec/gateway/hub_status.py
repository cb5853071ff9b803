"""The hub's status for /metrics and /health: a client that fetches it once, and a poller that keeps the latest one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import zmq
import zmq.asyncio

from starspec.errors import LinkError, PeerLost, PeerProtocolError
from starspec.log_limit import LogLimit
from starspec.stats import HubState
from starspec.wire.codec import MAX_FRAME_BYTES, Decoder, encode
from starspec.wire.keys import Keys, require_keys
from starspec.wire.messages import PROTOCOL_VERSION, Ask, HubPublicReply, HubStatus, Refused
from starspec.wire.transports.sockets import connect, host_of, set_limits
from starspec.wire.transports.unread_guard import LOOK_S, UnreadMonitor

TIMEOUT_S: Final = 1.0
INTERVAL_S: Final = 0.5

log = structlog.get_logger()

FetchHubStatus = Callable[[], Awaitable[HubStatus]]
"""Fetches the hub's status once. Raises: LinkError if the hub does not answer in time."""


class HubStatusClient:
    """Fetches one hub's status, over a new connection each time. A FetchHubStatus.

    Args:
        endpoint: the hub's public port, tcp://host:port.
        keys: of role "gateway".
        is_insecure: allow a host that is not loopback without keys.
    Raises: ConfigError if the endpoint is malformed or keys are missing.
    """

    def __init__(
        self, endpoint: str, keys: Keys | None = None, is_insecure: bool = False, timeout_s: float = TIMEOUT_S
    ) -> None:
        require_keys(host_of(endpoint, "the hub"), keys, is_insecure, "the gateway would connect to the hub at")
        self._endpoint = endpoint
        self._keys = keys
        self._hub_key = b"" if keys is None else keys.public_key_of("hub")
        self._timeout_s = timeout_s
        self._context = zmq.asyncio.Context()
        self._decoder: Decoder[HubPublicReply] = Decoder(HubPublicReply)
        self._monitors: set[UnreadMonitor] = set()  # of the requests in flight

    async def __call__(self) -> HubStatus:
        """The hub's status now.

        Raises: PeerLost if the hub does not answer in time, or at once if nobody listens there; PeerProtocolError if
            it answers with anything else.
        """
        socket = set_limits(self._context.socket(zmq.DEALER), MAX_FRAME_BYTES)
        port = int(self._endpoint.rpartition(":")[2])
        monitor = UnreadMonitor(socket, zmq.EVENT_CLOSED, peer_port=port)
        self._monitors.add(monitor)
        try:
            if self._keys is not None:
                self._hub_key = self._keys.newer_key_of("hub", self._hub_key) or self._hub_key
                self._keys.secure_client(socket, self._hub_key)
            connect(socket, self._endpoint)
            async with asyncio.timeout(self._timeout_s):
                await self._until(zmq.POLLOUT, socket, monitor)
                await socket.send(encode(Ask(PROTOCOL_VERSION)))
                await self._until(zmq.POLLIN, socket, monitor)
                answer = self._decoded(await socket.recv())
        except TimeoutError:
            raise PeerLost(f"the hub at {self._endpoint} did not answer within {self._timeout_s:g} s") from None
        finally:
            if monitor in self._monitors:
                self._monitors.discard(monitor)
                monitor.stop()
            socket.close(linger=0)
        if isinstance(answer, Refused):
            raise PeerProtocolError(f"the hub at {self._endpoint} refuses to answer: {answer.reason}")
        if not isinstance(answer, HubStatus):
            raise PeerProtocolError(f"the hub at {self._endpoint} answered Ask with {type(answer).__name__}")
        return answer

    def _decoded(self, frame: bytes) -> HubPublicReply:
        """Raises: PeerProtocolError."""
        try:
            return self._decoder.decode(frame)
        except PeerProtocolError as error:
            raise PeerProtocolError(f"what answers at {self._endpoint} is not a hub: {error}") from error

    async def _until(self, ready: int, socket: zmq.asyncio.Socket, monitor: UnreadMonitor) -> None:
        """Wait until the socket can send or receive. Raises: PeerLost if a connection is refused."""
        poller = zmq.asyncio.Poller()
        poller.register(socket, ready)
        while not await poller.poll(int(LOOK_S * 1000)):
            if any(monitor.events()):
                raise PeerLost(f"nobody listens at {self._endpoint}, where the hub should be")
            monitor.unread.look()

    def close(self) -> None:
        """Cancel the requests in flight and free the context, which would wait for their sockets. Idempotent."""
        while self._monitors:
            self._monitors.pop().stop()
        self._context.destroy(linger=0)


class HubStatusPoller:
    """Fetches the hub's status twice a second. `status` is None while the hub does not answer.

    The gateway works without it.
    """

    def __init__(self, fetch: FetchHubStatus, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._log_limit = LogLimit(clock)
        self._since_s = clock()
        self._tell: list[Callable[[], object]] = []
        self._is_misled = False  # what answered last refused, or is no hub
        self.status: HubStatus | None = None
        self.state: HubState = "connecting"

    @property
    def state_s(self) -> float:
        """Seconds in this state."""
        return self._clock() - self._since_s

    def on_change(self, tell: Callable[[], object]) -> None:
        """Call this whenever the state has changed."""
        self._tell.append(tell)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(INTERVAL_S)

    async def refresh(self) -> None:
        """Fetch once."""
        try:
            self.status = await self._fetch()
        except LinkError as error:
            was_misled, self._is_misled = self._is_misled, isinstance(error, PeerProtocolError)
            if self.status is not None or (self._is_misled and not was_misled):
                self._log_limit.log(log.warning, "the hub does not answer", why=str(error))
            if self.status is not None:
                self.status = None
                self._enter("lost")
        else:
            self._is_misled = False
            if self.state == "lost":
                self._log_limit.log(log.warning, "the hub answers again", seconds=round(self.state_s, 1))
            self._enter("connected")

    def _enter(self, state: HubState) -> None:
        if state != self.state:
            self.state, self._since_s = state, self._clock()
            for tell in self._tell:
                tell()
