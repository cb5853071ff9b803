"""Gateways take turns at a target's rows."""

from __future__ import annotations

from starspec.ids import PeerId, RequestId, RequestKey
from starspec.policy.queue_turns import in_turns, who_gives_way

A, B, C = (PeerId(name) for name in (b"a", b"b", b"c"))


def keys(*peers: PeerId) -> list[RequestKey]:
    return [RequestKey(peer, RequestId(str(number))) for number, peer in enumerate(peers)]


def test_one_gateway_has_a_plain_queue() -> None:
    assert in_turns(keys(A, A, A), [A, A]) == [0, 1, 2]


def test_a_late_request_of_another_gateway_is_next() -> None:
    assert in_turns(keys(A, A, A, B), [A, A]) == [3, 0, 1, 2]
    assert in_turns(keys(A, A, B, C, B), []) == [0, 2, 3, 1, 4]


def test_who_has_most_in_a_full_queue_gives_way_with_its_newest() -> None:
    waiting = keys(A, A, A, B)
    assert who_gives_way(waiting, C) == waiting[2]
    assert who_gives_way(waiting, B) == waiting[2]
    assert who_gives_way(waiting, A) is None


def test_nobody_gives_way_where_it_would_only_change_who_has_more() -> None:
    assert who_gives_way(keys(A, A, B), B) is None
    assert who_gives_way(keys(A, B), A) is None
    assert who_gives_way([], A) is None
