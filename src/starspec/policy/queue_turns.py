"""Whose request gets a target's next cache row, and who gives way in a full queue: peers take turns.

A peer is a gateway. Requests of one peer keep their order, so a target with one gateway has a plain queue. No I/O and
no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from starspec.ids import PeerId, RequestKey


def in_turns(waiting: Sequence[RequestKey], running: Iterable[PeerId]) -> list[int]:
    """The places of waiting requests, in the order in which they are to get rows.

    A request comes behind as many of each other peer's as its own peer has before it, running or waiting.

    Args:
        waiting: oldest first.
        running: the peer of each request that has a row.
    """
    num_before = Counter(running)
    ranks = []
    for key in waiting:
        ranks.append(num_before[key.peer])
        num_before[key.peer] += 1
    return sorted(range(len(waiting)), key=ranks.__getitem__)  # stable: the older one first


def who_gives_way(waiting: Sequence[RequestKey], peer: PeerId) -> RequestKey | None:
    """The request that leaves a full queue for one of `peer`: the newest of the peer with the most in the queue.

    Args:
        waiting: oldest first.
    Returns: None if no peer has more than one request more than `peer` has.
    """
    num_of = Counter(key.peer for key in waiting)
    if not num_of:
        return None
    [(greedy, most)] = num_of.most_common(1)
    if most <= num_of[peer] + 1:
        return None
    return next(key for key in reversed(waiting) if key.peer == greedy)
