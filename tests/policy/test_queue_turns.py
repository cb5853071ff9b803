"""Gateways take turns at a target's rows, by their owners."""

from __future__ import annotations

from starspec.ids import PeerId
from starspec.policy.queue_turns import MAX_REMEMBERED, ChunkTurns, Sender, in_turns, who_gives_way

A, B, C = (Sender(name, PeerId(name.encode())) for name in "abc")
GREEDY = [Sender("greedy", PeerId(b"%d" % number)) for number in range(20)]


def test_one_gateway_has_a_plain_queue() -> None:
    assert in_turns([A, A, A], [A, A]) == [0, 1, 2]


def test_a_late_request_of_another_gateway_is_next() -> None:
    assert in_turns([A, A, A, B], [A, A]) == [3, 0, 1, 2]
    assert in_turns([A, A, B, C, B], []) == [0, 2, 3, 1, 4]


def test_many_connections_of_one_owner_take_the_turns_of_one() -> None:
    assert in_turns([*GREEDY, A, A], []) == [0, 20, 1, 21, *range(2, 20)]
    assert in_turns([*GREEDY[1:], A, A], [GREEDY[0], A])[:4] == [0, 19, 1, 20]


def test_the_connections_of_one_owner_take_turns_at_its_share() -> None:
    one, two = GREEDY[:2]
    assert in_turns([one, one, one, two, A], [one]) == [4, 3, 0, 1, 2]


def test_who_has_most_in_a_full_queue_gives_way_with_its_newest() -> None:
    waiting = [A, A, A, B]
    assert who_gives_way(waiting, C) == 2
    assert who_gives_way(waiting, B) == 2
    assert who_gives_way(waiting, A) is None


def test_the_owner_with_the_most_gives_way_however_many_connections_it_has() -> None:
    waiting = [GREEDY[0], A, A, *GREEDY[:6]]
    assert who_gives_way(waiting, A) == 3, "of its connections the one with the most"
    assert who_gives_way(waiting, GREEDY[19]) == 3
    assert who_gives_way(waiting[1:], GREEDY[19]) is None


def test_nobody_gives_way_where_it_would_only_change_who_has_more() -> None:
    assert who_gives_way([A, A, B], B) is None
    assert who_gives_way([A, B], A) is None
    assert who_gives_way([], A) is None


def chunks(turns: ChunkTurns, prefilling: list[Sender], number: int) -> list[int]:
    """Whose prompts get the next chunks, as places."""
    places = []
    for _ in range(number):
        places.append(turns.order(prefilling)[0])
        turns.note(prefilling[places[-1]])
    return places


def test_prompts_of_one_gateway_get_chunks_in_their_order() -> None:
    assert chunks(ChunkTurns(), [A, A, A], 3) == [0, 0, 0]


def test_owners_take_turns_at_chunks_of_prompts() -> None:
    turns = ChunkTurns()
    assert chunks(turns, [A, A, A], 2) == [0, 0]
    assert chunks(turns, [A, A, A, B, B, C], 7) == [3, 5, 0, 3, 5, 0, 3]


def test_an_owner_gets_no_more_chunks_by_new_prompts_or_connections() -> None:
    turns = ChunkTurns()
    assert chunks(turns, [*GREEDY, A], 1) == [0]
    assert chunks(turns, [*GREEDY[1:], A], 5) == [19, 0, 19, 1, 19]


def test_few_owners_of_chunks_are_remembered() -> None:
    turns = ChunkTurns()
    for number in range(MAX_REMEMBERED):
        turns.note(Sender(str(number), PeerId(b"%d" % number)))
    turns.note(A)
    assert len(turns._last_of) == MAX_REMEMBERED
    assert turns.order([A, B]) == [1, 0]
