"""One direction of one connection: reads what one end sends, holds it while it travels, writes it to the other end."""

from __future__ import annotations

import asyncio
import socket
from asyncio import AbstractEventLoop
from collections import deque

from starspec.lab.travel import Travel, Way


class Pipe:
    """Carries bytes from one socket to another. Both are non-blocking; the pipe closes neither.

    Args:
        passes: set while the link is not partitioned.
        not_before_s: bytes that come earlier count as sent then, on the loop's clock.
    """

    def __init__(
        self,
        source: socket.socket,
        sink: socket.socket,
        way: Way,
        travel: Travel,
        passes: asyncio.Event,
        not_before_s: float,
    ) -> None:
        self._source, self._sink = source, sink
        self._way, self._travel = way, travel
        self._passes = passes
        self._not_before_s = not_before_s
        self._held: deque[tuple[float, bytes]] = deque()  # arrival and bytes; no bytes = the end
        self._num_held = 0
        self._news = asyncio.Event()  # something is held
        self._room = asyncio.Event()  # something was written
        self.is_broken = False  # the sink took no more, before the end

    async def run(self) -> None:
        """Carry all bytes and the end behind them, or until the sink breaks.

        What travels the other way meanwhile still arrives: a broken socket is read to its end by the other pipe.
        """
        loop = asyncio.get_running_loop()
        reading = asyncio.create_task(self._read(loop))
        try:
            await self._write(loop)
        except OSError:
            self.is_broken = True
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, loop: AbstractEventLoop) -> None:
        """Hold what the source sends, as long as there is room for it. The end of a broken source is one, too."""
        while True:
            room = self._way.window_bytes - self._num_held
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                data = await loop.sock_recv(self._source, min(room, self._way.chunk_bytes))
            except OSError:
                data = b""
            arrival_s = self._travel.arrival_s(len(data), max(loop.time(), self._not_before_s))
            self._held.append((arrival_s, data))
            self._num_held += len(data)
            self._news.set()
            if not data:
                return

    async def _write(self, loop: AbstractEventLoop) -> None:
        while True:
            while not self._held:
                self._news.clear()
                await self._news.wait()
            arrival_s, data = self._held.popleft()
            if (wait_s := arrival_s - loop.time()) > 0.0:
                await asyncio.sleep(wait_s)
            await self._passes.wait()
            if not data:
                self._sink.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(self._sink, data)
            self._num_held -= len(data)
            self._room.set()
            self._way.traffic.num_bytes += len(data)
