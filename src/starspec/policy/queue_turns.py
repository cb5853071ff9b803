"""Whose request gets a target's next cache row or chunk of a prompt, and who gives way in a full queue: owners of
gateways take turns.

So nobody gets more by opening more connections. The connections of one owner take turns at its share. Requests of one
connection keep their order, so a target with one gateway has a plain queue. No I/O and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from starspec.ids import PeerId

MAX_REMEMBERED: Final = 1024  # owners and connections whose last chunks are remembered


class Sender(NamedTuple):
    """Whose a request is."""

    owner: str  # of the gateway: its key if that is its own, else its address
    peer: PeerId


def in_turns(waiting: Sequence[Sender], running: Iterable[Sender]) -> list[int]:
    """The places of waiting requests, in the order in which they are to get rows.

    A request comes behind as many of each other owner's as its own owner has before it, running or waiting; and so for
    the connections of one owner.

    Args:
        waiting: the sender of each request, oldest first.
        running: the sender of each request that has a row.
    """
    having = list(running)
    by_peer = _in_turns(range(len(waiting)), waiting, having)
    return _in_turns(by_peer, [each.owner for each in waiting], [each.owner for each in having])


def who_gives_way(waiting: Sequence[Sender], newcomer: Sender) -> int | None:
    """The place of the request that leaves a full queue for the newcomer's; None if none does.

    It is one of the owner with the most in the queue, if the newcomer's owner has fewer by at least two; else one of
    the newcomer's own owner. It is the newest of that owner's connection with the most, and of the newcomer's own
    owner only if the newcomer has fewer by at least two.

    Args:
        waiting: the sender of each request, oldest first.
    """
    num_of_owner = Counter(each.owner for each in waiting)
    owner = max(num_of_owner, key=num_of_owner.__getitem__, default=newcomer.owner)
    if num_of_owner[owner] <= num_of_owner[newcomer.owner] + 1:
        owner = newcomer.owner
    num_of = Counter(each for each in waiting if each.owner == owner)
    greedy = max(num_of, key=num_of.__getitem__, default=newcomer)
    if owner == newcomer.owner and num_of[greedy] <= num_of[newcomer] + 1:
        return None
    return max(place for place, each in enumerate(waiting) if each == greedy)


class ChunkTurns:
    """Whose prompt is forwarded next: that of the owner whose last chunk is longest ago, and so for its connections."""

    def __init__(self) -> None:
        self._num_chunks = 0
        self._last_of: dict[str | Sender, int] = {}  # the number of its last chunk, lowest first

    def order(self, prefilling: Sequence[Sender]) -> list[int]:
        """The places of prompts, in the order in which they are to get chunks.

        Args:
            prefilling: the sender of each, oldest first.
        """
        senders = list(enumerate(prefilling))
        last = self._last_of
        return [place for place, _ in sorted(senders, key=lambda at: (last.get(at[1].owner, 0), last.get(at[1], 0)))]

    def note(self, sender: Sender) -> None:
        """A prompt of this sender got a chunk."""
        self._num_chunks += 1
        for name in (sender.owner, sender):
            self._last_of.pop(name, None)
            self._last_of[name] = self._num_chunks
        while len(self._last_of) > MAX_REMEMBERED:
            del self._last_of[next(iter(self._last_of))]


def _in_turns(places: Iterable[int], waiting: Sequence[Hashable], running: Iterable[Hashable]) -> list[int]:
    """The places, by how many of the same name come before each, running or at an earlier place; then the older one."""
    num_before = Counter(running)
    ranks = {}
    for place in places:
        ranks[place] = num_before[waiting[place]]
        num_before[waiting[place]] += 1
    return sorted(ranks, key=lambda place: (ranks[place], place))
