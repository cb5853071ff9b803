"""All links of a lab: in a running event loop, or in a thread of its own, which tests and benchmarks use."""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from starspec.config.lab import LabConfig, LabLink, LinkShape, Listen
from starspec.errors import ConfigError
from starspec.lab.link import Link, OpenLink
from starspec.lab.netem_link import NetemLink
from starspec.lab.travel import Traffic
from starspec.wire.keys import is_loopback

T = TypeVar("T")
CALL_S: Final = 10.0  # longest wait for the lab's own thread
MAX_SELECTED: Final = 1024  # file descriptors below this can be waited for by select(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """What has passed a link so far."""

    name: str
    endpoint: str
    forth: Traffic  # from clients to the server
    back: Traffic
    num_connections: int  # accepted so far
    num_open: int


class Lab:
    """The links of a lab. An async context manager: links listen inside. Its methods belong to the loop's thread.

    Args:
        seed: of jitter and losses.
        is_insecure: allow links to listen on addresses that are not loopback.
        by_netem: the kernel's netem delays and loses packets, instead of this process.
    Raises: ConfigError if there is no link, or two with one name, or one that cannot or must not listen; as
        NetemLink.open.
    """

    def __init__(self, *links: LabLink, seed: int = 0, is_insecure: bool = False, by_netem: bool = False) -> None:
        self._config = LabConfig(links=links, seed=seed)
        for host in [Listen.parse(each.listen).host for each in links]:
            if not (is_insecure or is_loopback(host)):
                raise ConfigError(
                    f"the lab would listen on {host} and pass on whatever comes: say --insecure to allow it"
                )
        self._open: Callable[[LabLink, int], Awaitable[Link]] = NetemLink.open if by_netem else OpenLink.open
        self._links: dict[str, Link] = {}

    async def __aenter__(self) -> Self:
        try:
            for each in self._config.links:
                self._links[each.label] = await self._open(each, self._config.seed)
        except ConfigError:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._links.values()))

    def link(self, name: str | None = None) -> Link:
        """A link by its name; None = the only one."""
        if name is None:
            (only,) = self._links.values()
            return only
        return self._links[name]

    async def traffic(self) -> list[LinkTraffic]:
        """What has passed each link, in the order of the config; a copy."""
        return [
            LinkTraffic(
                name=each.name,
                endpoint=each.endpoint,
                forth=forth,
                back=back,
                num_connections=each.num_connections,
                num_open=each.num_open,
            )
            for each in self._links.values()
            for forth, back in [await each.traffic()]
        ]


class LabThread:
    """A lab in a thread of its own. A context manager; its methods may be called from any thread.

    Each method takes the name of a link; None = the only one.

    Args: as Lab.
    Raises: as Lab.
    """

    def __init__(self, *links: LabLink, seed: int = 0, is_insecure: bool = False, by_netem: bool = False) -> None:
        self._lab = Lab(*links, seed=seed, is_insecure=is_insecure, by_netem=by_netem)
        self._loop = precise_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="starspec-lab", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._lab.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._lab.__aexit__(None, None, None))
        finally:
            self._stop()

    def endpoint(self, name: str | None = None) -> str:
        """As Link.endpoint."""
        return self._call(lambda: self._lab.link(name).endpoint)

    def partition(self, name: str | None = None, *, cut: bool = False) -> None:
        """As Link.partition."""
        self._call(lambda: self._lab.link(name).partition(cut=cut))

    def heal(self, name: str | None = None) -> None:
        """As Link.heal."""
        self._call(lambda: self._lab.link(name).heal())

    def reset(self, name: str | None = None) -> None:
        """As Link.reset."""
        self._call(lambda: self._lab.link(name).reset())

    def reshape(self, shape: LinkShape, back: LinkShape | None = None, *, name: str | None = None) -> None:
        """As Link.reshape."""

        async def reshape() -> None:
            await self._lab.link(name).reshape(shape, back)

        self._run(reshape())

    def traffic(self) -> list[LinkTraffic]:
        """As Lab.traffic."""
        return self._run(self._lab.traffic())

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._run(call())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(CALL_S)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()


def precise_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose timers are exact to some microseconds. Those of Linux's default loop are up to 1 ms late."""
    epoll = getattr(selectors, "EpollSelector", None)
    return asyncio.SelectorEventLoop(None if epoll is None else _precise(epoll()))


def _precise(selector: Any) -> Any:
    """The selector, which waits by select(2) for its own descriptor: epoll_wait(2) counts whole milliseconds."""
    look = selector.select

    def wait(timeout: float | None = None) -> Any:
        if timeout is not None and 0.0 < timeout < math.inf and selector.fileno() < MAX_SELECTED:
            select.select([selector.fileno()], [], [], timeout)
            timeout = 0.0
        return look(timeout)

    selector.select = wait
    return selector
