"""Whose place a newcomer gets where all are taken: of targets at the hub's port, of clients at the gateway's.

Nobody who uses a place loses it. The one that has been idle for longest goes first. No I/O and no clock of its own:
`now` is seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

MAX_COMING: Final = 64  # targets that were welcomed and have not come to their ports yet
NEWCOMERS_PER_S: Final = 50.0  # a port for each takes the hub some time
NEWCOMERS_BURST: Final = 128.0
NEWCOMER_RETRY_S: Final = 1.0  # for a target that comes when too many do
IDLE_S: Final = 10.0  # a target that asked for nothing for so long loses its place to a newcomer, if all are taken

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


def longest_idle(idle: Mapping[Holder, str], address: str | None = None) -> Holder | None:
    """The client's connection that gives its place to a newcomer; None if all have requests.

    Args:
        idle: connections without a request and their addresses; the one idle for longest is the first.
        address: where the newcomer comes from, if that address has as many connections as it may; None = there are as
            many connections as there may be, and any one will do.
    """
    return next((holder for holder, its in idle.items() if address is None or its == address), None)
