"""Whose place a newcomer gets where all are taken: of targets at the hub's port, of clients at the gateway's.

A target that uses its place and a client that waits for its answer do not lose theirs. No I/O and no clock of its own:
`now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

MAX_COMING: Final = 64  # targets that were welcomed and have not come to their ports yet
NEWCOMERS_PER_S: Final = 50.0  # a port for each takes the hub some time
NEWCOMERS_BURST: Final = 128.0
NEWCOMER_RETRY_S: Final = 1.0  # for a target that comes when too many do
IDLE_S: Final = 10.0  # a target that asked for nothing for so long loses its place to a newcomer, if all are taken
GRACE_S: Final = 2.0  # after its last progress, a client's connection is not the first to give way
PROGRESS_BYTES: Final = 1024  # of a body; one that gets fewer in GRACE_S makes no progress

Holder = TypeVar("Holder")


def num_kept(used_at: Collection[float], now: float) -> int:
    """Places at a hub that a newcomer cannot get: all that are taken, but for one if its target is idle.

    Args:
        used_at: for each target with a place, when it asked for something last.
    """
    return len(used_at) - any(now - each >= IDLE_S for each in used_at)


def idlest(used_at: Mapping[Holder, float]) -> Holder:
    """The target that gives its place to a newcomer: it asked for nothing for longest. At least one has a place.

    Args:
        used_at: as for `num_kept`.
    """
    return min(used_at, key=lambda holder: used_at[holder])


def who_stops_coming(coming: Sequence[Holder], chance: Random) -> Holder | None:
    """The target whose port is closed for another welcome, if too many have not come to their ports yet.

    It is a random one, so that nobody can keep all others out by being quicker.
    """
    return chance.choice(coming) if len(coming) >= MAX_COMING else None


class Wait:
    """A client's connection that waits for its client: for a request, or for the rest of one.

    Args:
        address: the client's.
        now: when the wait began.
    """

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.began_s = now
        self._progress_s = now
        self._num_bytes = 0

    def hear(self, num_bytes: int, now: float) -> None:
        """So many bytes of a request's body came. Few bytes are no progress: anybody can send one now and then."""
        self._num_bytes += num_bytes
        if self._num_bytes >= PROGRESS_BYTES:
            self._progress_s, self._num_bytes = now, 0

    def is_in_grace(self, now: float) -> bool:
        """Whether it has just begun, or its body makes progress."""
        return now - self._progress_s < GRACE_S


def who_gives_way(waits: Mapping[Holder, Wait], now: float, address: str | None = None) -> Holder | None:
    """The client's connection that gives its place to a newcomer; None if none waits for its client.

    Those without progress go first. Among them, the address that has the most gives way, so that few addresses cannot
    close the gateway to all others; and of its connections the one that waits for longest.

    Args:
        waits: of all connections whose request has not arrived in full.
        address: where the newcomer comes from, if that address has as many connections as it may; None = there are as
            many connections as there may be, and any one will do.
    """
    able = {holder: wait for holder, wait in waits.items() if address is None or wait.address == address}
    first = {holder: wait for holder, wait in able.items() if not wait.is_in_grace(now)} or able
    num_at = Counter(wait.address for wait in first.values())
    return min(first, key=lambda holder: (-num_at[first[holder].address], first[holder].began_s), default=None)
