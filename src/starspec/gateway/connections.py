"""The table of all HTTP connections, which is bounded, and whose place a newcomer gets."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import structlog

from starspec.audit import AuditLog
from starspec.log_limit import LogLimit
from starspec.policy.newcomers import Wait, who_gives_way

log = structlog.get_logger()


class Connection(Protocol):
    """What can have a place."""

    def give_way(self) -> None:
        """End, and hold nothing for longer than a refused newcomer does."""


class Turns:
    """The turns of connections whose next request came before its time: one in a turn of the event loop.

    The one that waits for longest is next. Whoever sends many requests at once so waits for all others after each of
    them, and everything else on the loop has its turn in between.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, begin: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Effects: calls `begin` in a later turn of the loop."""
        self._waiting.append(begin)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        begin = self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._next, loop)
        begin()


class ConnectionTable:
    """All open connections: at most `max_all`, and at most `max_per_address` of one client address.

    A newcomer takes the place of one whose request has not arrived in full. If all wait for their answers, the newcomer
    gets 503.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        max_all: int,
        max_per_address: int,
        log_limit: LogLimit,
        clock: Callable[[], float],
        audit: AuditLog | None = None,
    ) -> None:
        self._max_all = max_all
        self._max_per_address = max_per_address
        self._log_limit = log_limit
        self._clock = clock
        self._audit = audit or AuditLog.off()
        self._address_of: dict[Connection, str] = {}
        self._num_at: Counter[str] = Counter()
        self._waits: dict[Connection, Wait] = {}
        self.turns = Turns()

    def __len__(self) -> int:
        return len(self._address_of)

    def admit(self, connection: Connection, address: str) -> bool:
        """Give the connection a place, as one that waits. Returns: whether there is one.

        Effects: may end another connection; logs a refusal.
        """
        if self._num_at[address] >= self._max_per_address and not self.make_room(address):
            self._log_refusal("one address has as many connections as it may", address, self._max_per_address)
            return False
        if len(self) >= self._max_all and not self.make_room():
            self._log_refusal("there are as many connections as there may be", address, self._max_all)
            return False
        self._address_of[connection] = address
        self._num_at[address] += 1
        self._waits[connection] = Wait(address, self._clock())
        self._audit.note("client_connected", client=address)
        return True

    def release(self, connection: Connection) -> None:
        """The connection has ended. Idempotent."""
        self._waits.pop(connection, None)
        address = self._address_of.pop(connection, None)
        if address is not None:
            self._num_at[address] -= 1
            if not self._num_at[address]:
                del self._num_at[address]

    def begin_wait(self, connection: Connection) -> None:
        """The connection waits for its client. Idempotent."""
        if connection in self._address_of and connection not in self._waits:
            self._waits[connection] = Wait(self._address_of[connection], self._clock())

    def end_wait(self, connection: Connection) -> None:
        """Its client has sent what was waited for. Idempotent."""
        self._waits.pop(connection, None)

    def hear(self, connection: Connection, num_bytes: int) -> None:
        """So many bytes of its request's body came."""
        if (wait := self._waits.get(connection)) is not None:
            wait.hear(num_bytes, self._clock())

    def make_room(self, address: str | None = None) -> bool:
        """End one of the connections that wait, of one address or of all.

        Returns: whether there was one.
        """
        connection = who_gives_way(self._waits, self._clock(), address)
        if connection is None:
            return False
        self.release(connection)
        connection.give_way()
        return True

    def _log_refusal(self, why: str, address: str, most: int) -> None:
        self._log_limit.log(log.warning, "a connection was refused", kind=why, why=why, client=address, most=most)
