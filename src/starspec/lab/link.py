"""One link of a lab: it accepts connections, opens one to the server for each, and carries bytes both ways."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final, Protocol, Self

from starspec.config.lab import LabLink, LinkShape, Listen, Partition
from starspec.errors import ConfigError
from starspec.lab.pipe import Pipe
from starspec.lab.travel import MAX_WINDOW_BYTES, Traffic, Travel, Way
from starspec.wire.transports.sockets import endpoint_at, host_of

MAX_CONNECTIONS: Final = 512  # of a link at once; more are reset
SMALL_BUFFER_BYTES: Final = 64 * 1024  # of the kernel, where bandwidth is limited: else it would hide the limit
RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection
RETRY_S: Final = 0.01  # until the next connection is accepted, after one that could not be

MakeSocket = Callable[[str], Awaitable[socket.socket]]
"""(host) -> a TCP socket for addresses such as this one. Raises: OSError."""


def socket_for(host: str) -> socket.socket:
    """A TCP socket in the network of this thread."""
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


async def _socket_here(host: str) -> socket.socket:
    """Implements MakeSocket, in the network of this process."""
    return socket_for(host)


class Link(Protocol):
    """One link of a lab, while it is open. None of its methods keeps the event loop waiting."""

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> str:
        """Where clients connect to, tcp://host:port; the first of several ports."""
        ...

    @property
    def num_connections(self) -> int:
        """Accepted so far."""
        ...

    @property
    def num_open(self) -> int:
        """Connections at this moment."""
        ...

    async def traffic(self) -> tuple[Traffic, Traffic]:
        """What has passed so far, from clients to the server and back; copies."""
        ...

    def partition(self, *, cut: bool = False) -> None:
        """From now on nothing passes. With `cut`, connections are reset too, and new ones until `heal` are refused."""
        ...

    def heal(self) -> None:
        """What was held by a partition arrives, and bytes pass again."""
        ...

    def reset(self) -> None:
        """Reset all connections. New ones are accepted."""
        ...

    async def reshape(self, shape: LinkShape, back: LinkShape | None = None) -> None:
        """Change what the link does to bytes that are sent from now on. Args: as in LabLink."""
        ...

    async def close(self) -> None:
        """Stop listening and reset all connections."""
        ...


class OpenLink:
    """A Link that delays and loses bytes in this process. Made by `open`."""

    def __init__(
        self,
        config: LabLink,
        seed: int,
        listeners: Sequence[socket.socket],
        connects: MakeSocket,
        max_window_bytes: int,
    ) -> None:
        self.name = config.label
        self._forth = Way(config.shape, max_window_bytes)
        self._back = Way(config.shape_back, max_window_bytes)
        self.num_connections = 0
        self._seed = seed
        self._passes = asyncio.Event()
        self._passes.set()
        self._is_cut = False
        self._tasks: set[asyncio.Task[None]] = set()  # one for each connection
        self._to = server_of(config, len(listeners))
        self._connects = connects
        self._listeners = listeners
        self._own = [asyncio.create_task(self._accept(each, index)) for index, each in enumerate(self._listeners)]
        self._own.append(asyncio.create_task(self._follow(config.partitions)))

    @classmethod
    async def open(
        cls,
        config: LabLink,
        seed: int,
        *,
        listens: MakeSocket = _socket_here,
        connects: MakeSocket = _socket_here,
        max_window_bytes: int = MAX_WINDOW_BYTES,
    ) -> Self:
        """Listen, in the running event loop.

        Args:
            seed: of jitter and losses.
            listens, connects: make the sockets of the two ends.
            max_window_bytes: as of Way, of both directions.
        Raises: ConfigError if it cannot listen there, or if the server's address is malformed.
        """
        where = Listen.parse(config.listen)
        server_of(config, where.num_ports)  # what is wrong is found before anything is open
        listeners = await _listen(where, listens, is_small=config.shape.mbit_s is not None)
        return cls(config, seed, listeners, connects, max_window_bytes)

    @property
    def endpoint(self) -> str:
        host, port, *_ = self._listeners[0].getsockname()
        return endpoint_at(host, port)

    @property
    def num_open(self) -> int:
        return len(self._tasks)

    async def traffic(self) -> tuple[Traffic, Traffic]:
        return replace(self._forth.traffic), replace(self._back.traffic)

    def partition(self, *, cut: bool = False) -> None:
        self._passes.clear()
        self._is_cut = cut
        if cut:
            self.reset()

    def heal(self) -> None:
        self._is_cut = False
        self._passes.set()

    def reset(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def reshape(self, shape: LinkShape, back: LinkShape | None = None) -> None:
        self._forth.shape, self._back.shape = shape, shape if back is None else back

    async def close(self) -> None:
        self.reset()
        for task in self._own:
            task.cancel()
        await asyncio.gather(*self._own, *self._tasks, return_exceptions=True)
        for each in self._listeners:
            each.close()

    async def _follow(self, partitions: tuple[Partition, ...]) -> None:
        """Partition the link at the times that its config states."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for each in partitions:
            await asyncio.sleep(begun_s + each.start_s - loop.time())
            self.partition(cut=each.cut)
            await asyncio.sleep(begun_s + each.stop_s - loop.time())
            self.heal()

    async def _accept(self, listener: socket.socket, index: int) -> None:
        """Accept connections of the port that is `index` behind the first."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:  # the client is gone again, or this process has no descriptor left
                await asyncio.sleep(RETRY_S)
                continue
            self.num_connections += 1
            if self._is_cut or len(self._tasks) >= MAX_CONNECTIONS:
                _close(client, reset=True)
                continue
            task = asyncio.create_task(self._connect(client, index, self.num_connections))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: socket.socket, index: int, number: int) -> None:
        """Carry one connection until both ends have ended, or until one breaks."""
        is_whole = False
        try:
            server = await self._connects(self._to[0])
        except OSError:  # this process has no descriptor left
            _close(client, reset=True)
            return
        except asyncio.CancelledError:
            _close(client, reset=True)
            raise
        try:
            is_whole = await self._carry(client, server, index, Random(f"{self._seed}/{self.name}/{number}"))  # noqa: S311
        finally:
            for each in (client, server):
                _close(each, reset=not is_whole)

    async def _carry(self, client: socket.socket, server: socket.socket, index: int, random: Random) -> bool:
        """Returns: whether all bytes of both ends have arrived. False if the server does not accept the connection."""
        loop = asyncio.get_running_loop()
        opened_s = loop.time()
        for each in (client, server):
            each.setblocking(False)
        await asyncio.sleep(self._forth.shape.delay_ms / 1e3)  # the first packet of the handshake is on its way
        await self._passes.wait()
        host, port = self._to
        try:
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(server, (host, port + index))
        except OSError:
            return False
        # a client sends after the handshake
        ready_s = opened_s + (self._forth.shape.delay_ms + self._back.shape.delay_ms) / 1e3
        pipes = (
            Pipe(client, server, self._forth, Travel(self._forth, random), self._passes, ready_s),
            Pipe(server, client, self._back, Travel(self._back, Random(random.random())), self._passes, 0.0),  # noqa: S311
        )
        await asyncio.gather(*(each.run() for each in pipes))
        return not any(each.is_broken for each in pipes)


def server_of(config: LabLink, num_ports: int) -> tuple[str, int]:
    """Host and first port of a link's server. Raises: ConfigError."""
    host = host_of(config.to, f"the server of link '{config.label}'")
    port = int(config.to.rpartition(":")[2])
    if port + num_ports > 65536:
        raise ConfigError(f"link '{config.label}' has {num_ports} ports, and its server's would end beyond 65535")
    host, where = host.strip("[]"), Listen.parse(config.listen)
    if host == where.host and where.first_port < port + num_ports and port <= where.last_port and where.first_port:
        raise ConfigError(
            f"link '{config.label}' leads to itself: it listens where its server is said to be, at {config.to}; let it"
            " listen elsewhere, as on 127.0.0.2"
        )
    return host, port


async def _listen(where: Listen, listens: MakeSocket, *, is_small: bool) -> list[socket.socket]:
    """A listening socket for each port. Raises: ConfigError that names the port that cannot be had."""
    listeners: list[socket.socket] = []
    try:
        for port in range(where.first_port, where.last_port + 1):
            listener = await listens(where.host)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_small:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)  # connections inherit it
            listener.bind((where.host, port))
            listener.listen(MAX_CONNECTIONS)
            listener.setblocking(False)
    except OSError as error:
        for each in listeners:
            each.close()
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"the lab cannot listen on {where.host}:{port}: {why}") from error
    return listeners


def _close(connection: socket.socket, *, reset: bool) -> None:
    if reset and connection.fileno() != -1:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()
