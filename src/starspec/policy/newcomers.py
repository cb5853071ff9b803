"""How fast newcomers may come, and whose place one gets where all are taken: of targets at the hub, of clients.

A target that uses its place loses it only to one whose owner has fewer places. A client that waits for its answer does
not lose its place. No I/O and no clock of its own: `now` is seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple, TypeVar

from starspec.policy.peer_limits import Allowance

MAX_COMING: Final = 64  # targets that were welcomed and have not come to their ports yet
NEWCOMER_RETRY_S: Final = 1.0  # for a target that comes when too many do
IDLE_S: Final = 10.0  # a target that asked for no drafts for so long loses its place to a newcomer, if all are taken
GRACE_S: Final = 2.0  # after its last progress, a client's connection is not the first to give way
PROGRESS_BYTES: Final = 1024  # of a body; one that gets fewer in GRACE_S makes no progress

DOOR_PER_S: Final = 50.0  # connections that one owner may begin at a server of the wire, and links at a hub
DOOR_BURST: Final = 128.0
SHUT_S: Final = 2.0  # for which an owner begins none after one of its connections flooded
MAX_OWNERS: Final = 4096  # that a door remembers, and whose turns are

TAKES_PER_S: Final = 1.0  # ports of a full range that one owner may take: a server waits until each is free
TAKES_BURST: Final = 4.0
TURN_S: Final = 10.0  # an owner that just got a port takes no equal's for so long; a target has half of it to come

Holder = TypeVar("Holder")


class Door:
    """How many connections, or links, the owners of places may begin at a server.

    Whoever begins connections all the time would bring a full queue on each, and reading them takes the server time.
    So does a port for each link. Each owner has a rate of its own, and who is not let in does not use it up: otherwise
    one that asks without end would shut out all others, or itself for ever.

    Args:
        per_s: that each owner may begin each second.
        burst: at once.
    """

    def __init__(self, per_s: float | None = None, burst: float | None = None) -> None:
        self._per_s = DOOR_PER_S if per_s is None else per_s
        self._burst = DOOR_BURST if burst is None else burst
        self._owners: OrderedDict[str, Allowance] = OrderedDict()  # the one that came last at the end

    def lets_in(self, owner: str, now: float) -> bool:
        """Whether another connection, or link, of this owner may begin."""
        allowance = self._allowance(owner)
        return allowance.num_units(now) >= 1.0 and allowance.take(1.0, now)

    def shut(self, owner: str, now: float) -> None:
        """A connection of this owner flooded: for SHUT_S no other one may begin, and then few."""
        allowance = self._allowance(owner)
        allowance.take(allowance.num_units(now) + SHUT_S * self._per_s, now)

    def _allowance(self, owner: str) -> Allowance:
        allowance = self._owners.setdefault(owner, Allowance(self._per_s, self._burst))
        self._owners.move_to_end(owner)
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)
        return allowance


class Place(NamedTuple):
    """A target's place at a hub."""

    owner: str  # whose it is: places are shared by owners, that is by keys or addresses
    used_at: float  # when its target asked for drafts or got some last


def whose_place(places: Mapping[Holder, Place], owner: str, now: float) -> Holder | None:
    """The target that gives its place to a newcomer where all are taken; None if none does.

    It is one that is idle, of the owner with the most places among those that have idle ones. If none is idle, it is a
    target of the owner with the most places of all, if the newcomer's owner has fewer than that by at least two: so few
    owners cannot keep all others out, however busy they look. Of one owner's targets, the one that was used least
    recently goes.

    Args:
        owner: of the newcomer.
    """
    num_of = Counter(place.owner for place in places.values())
    idle = {holder: place for holder, place in places.items() if now - place.used_at >= IDLE_S}
    able = idle or {holder: place for holder, place in places.items() if num_of[place.owner] > num_of[owner] + 1}
    return min(able, key=lambda holder: (-num_of[able[holder].owner], able[holder].used_at), default=None)


def who_stops_coming(coming: Sequence[Holder], chance: Random) -> Holder | None:
    """The target whose port is closed for another welcome, if too many have not come to their ports yet.

    It is a random one, so that nobody can keep all others out by being quicker.
    """
    return chance.choice(coming) if len(coming) >= MAX_COMING else None


class Turns:
    """When the owners of places got a port last.

    Owners with equally many ports can take the last one from each other. One that does it by Hellos without end would
    never leave the others the time to come. So each waits for its turn.
    """

    def __init__(self) -> None:
        self._got_at: OrderedDict[str, float] = OrderedDict()  # by owner; the one that got a port last at the end

    def note(self, owner: str, now: float) -> None:
        """A target of this owner got a port."""
        self._got_at[owner] = now
        self._got_at.move_to_end(owner)
        if len(self._got_at) > MAX_OWNERS:
            self._got_at.popitem(last=False)

    def has_turn(self, owner: str, now: float) -> bool:
        """Whether this owner may take a port from one that has as many."""
        return now - self._got_at.get(owner, -math.inf) >= TURN_S


def whose_port(coming: Mapping[Holder, str], others: Sequence[str], owner: str, *, has_turn: bool) -> Holder | None:
    """The target whose port a newcomer gets, if there are few ports and all are taken; None if none can.

    Only a target that has not come to its port yet is asked, of the owner with the most ports: who only asks for ports
    and does not come keeps none from others. An owner with fewer ports than the newcomer's keeps its own.

    Args:
        coming: by target, whose it is.
        others: whose the ports are to which targets have come.
        owner: of the newcomer, which counts as coming.
        has_turn: whether this owner may take a port from one that has as many.
    """
    num_of = Counter([owner, *coming.values(), *others])
    late = max(coming, key=lambda holder: (num_of[coming[holder]], coming[holder] == owner), default=None)
    if late is None or coming[late] == owner:
        return late
    num_more = num_of[coming[late]] - num_of[owner]
    return late if num_more > 0 or (num_more == 0 and has_turn) else None


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
        """So many bytes of a request's body came. Few do not count as progress: anybody can send one now and then."""
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
