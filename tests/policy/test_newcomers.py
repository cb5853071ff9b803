"""Who gives its place to a newcomer, and who keeps it."""

from __future__ import annotations

from collections import Counter
from random import Random

from starspec.policy.newcomers import (
    DOOR_BURST,
    DOOR_PER_S,
    GRACE_S,
    IDLE_S,
    MAX_COMING,
    MAX_OWNERS,
    PROGRESS_BYTES,
    SHUT_S,
    TURN_S,
    Door,
    Place,
    Turns,
    Wait,
    who_gives_way,
    who_stops_coming,
    whose_place,
    whose_port,
)


def places(**each: tuple[str, float]) -> dict[str, Place]:
    return {name: Place(*place) for name, place in each.items()}


def test_an_idle_target_gives_its_place_and_one_in_use_does_not() -> None:
    assert whose_place({}, "new", 100.0) is None
    assert whose_place(places(a=("x", 100.0), b=("x", 100.0 - IDLE_S / 2)), "x", 100.0) is None
    assert whose_place(places(a=("x", 100.0), b=("x", 100.0 - IDLE_S)), "x", 100.0) == "b"
    assert whose_place(places(a=("x", 3.0), b=("x", 1.0), c=("x", 2.0)), "x", 100.0) == "b", "the one idle for longest"


def test_of_idle_targets_one_of_the_owner_with_the_most_places_gives_way() -> None:
    held = places(a=("one", 0.0), b=("two", 5.0), c=("two", 100.0))
    assert whose_place(held, "new", 100.0) == "b"


def test_an_owner_with_many_busy_places_gives_one_to_an_owner_with_fewer() -> None:
    held = places(a=("greedy", 99.0), b=("greedy", 98.0), c=("greedy", 100.0), d=("honest", 95.0))
    assert whose_place(held, "new", 100.0) == "b", "the least recently used of them"
    assert whose_place(held, "honest", 100.0) == "b"
    assert whose_place(held, "greedy", 100.0) is None


def test_owners_with_nearly_the_same_number_of_places_take_none_from_each_other() -> None:
    """Else targets would go in and out for ever."""
    held = places(a=("one", 99.0), b=("one", 98.0), c=("two", 97.0))
    assert whose_place(held, "two", 100.0) is None
    assert whose_place(places(a=("one", 99.0), b=("two", 97.0)), "new", 100.0) is None


def test_few_targets_on_their_way_are_left_alone_and_of_many_anyone_may_be_given_up() -> None:
    chance, coming = Random(1), range(MAX_COMING)
    assert who_stops_coming(coming[:-1], chance) is None
    given_up = Counter(who_stops_coming(coming, chance) for _ in range(100 * MAX_COMING))
    assert given_up.keys() == set(coming)
    assert max(given_up.values()) < 200, "nobody is given up much more often than others"


def waits(**began: tuple[str, float]) -> dict[str, Wait]:
    return {name: Wait(*each) for name, each in began.items()}


def test_the_connection_that_waits_for_longest_gives_way_to_one_of_its_address_or_of_any() -> None:
    idle = waits(a=("here", 0.0), b=("there", 1.0))
    assert who_gives_way(idle, 9.0) == "a"
    assert who_gives_way(idle, 9.0, "there") == "b"
    assert who_gives_way(idle, 9.0, "elsewhere") is None
    assert who_gives_way({}, 9.0) is None


def test_the_address_with_the_most_gives_way_and_not_who_waited_for_longest() -> None:
    idle = waits(honest=("here", 0.0), slow=("there", 1.0), slower=("there", 2.0))
    assert who_gives_way(idle, 9.0) == "slow"
    just_begun = waits(honest=("here", 8.9), slow=("there", 8.9), slower=("there", 8.8))
    assert who_gives_way(just_begun, 9.0) == "slower"


def test_an_upload_that_makes_progress_is_not_the_first_to_give_way_and_one_that_dribbles_is() -> None:
    bodies = waits(upload=("here", 0.0), upload_too=("here", 0.1), dribble=("there", 0.2))
    for tick in range(1, 40):
        now = 0.2 + tick / 4
        bodies["upload"].hear(PROGRESS_BYTES // 2, now)
        bodies["upload_too"].hear(PROGRESS_BYTES, now)
        bodies["dribble"].hear(1, now)
        assert tick / 4 <= GRACE_S or who_gives_way(bodies, now) == "dribble"
    del bodies["dribble"]
    assert who_gives_way(bodies, now) == "upload", "but it gives way before a newcomer is refused"
    assert who_gives_way(bodies, now + GRACE_S) == "upload"


def num_let_in(door: Door, owner: str, now: float, num_tries: int = 1000) -> int:
    return sum(door.lets_in(owner, now) for _ in range(num_tries))


def test_an_owner_begins_a_burst_of_connections_and_then_so_many_a_second() -> None:
    door = Door()
    assert num_let_in(door, "a", 0.0) == DOOR_BURST
    assert num_let_in(door, "b", 0.0) == DOOR_BURST
    assert num_let_in(door, "a", 1.0) == DOOR_PER_S


def test_a_door_may_have_rates_of_its_own() -> None:
    door = Door(1.0, 4.0)
    assert num_let_in(door, "a", 0.0) == 4
    assert num_let_in(door, "a", 1.0) == 1
    door.shut("b", 0.0)
    assert num_let_in(door, "b", SHUT_S - 0.1) == 0


def test_after_a_flood_an_owner_begins_no_connection_for_a_while_and_then_one_by_one() -> None:
    door = Door()
    for _ in range(3):
        door.shut("a", 0.0)
    assert num_let_in(door, "a", SHUT_S - 0.1) == 0
    assert num_let_in(door, "b", SHUT_S - 0.1) == DOOR_BURST
    assert num_let_in(door, "a", SHUT_S + 1.5 / DOOR_PER_S) == 1


def test_a_door_remembers_so_many_owners() -> None:
    door = Door()
    for number in range(MAX_OWNERS + 1):
        door.shut(str(number), 0.0)
    assert num_let_in(door, str(MAX_OWNERS), 0.0) == 0
    assert num_let_in(door, "0", 0.0) == DOOR_BURST, "the one that came first is forgotten"


def test_who_only_asks_for_ports_gives_one_to_a_newcomer() -> None:
    assert whose_port({}, [], "b", has_turn=True) is None
    assert whose_port({1: "a"}, [], "b", has_turn=True) == 1
    assert whose_port({1: "b", 2: "a", 3: "a"}, [], "c", has_turn=False) == 2, "of the owner with the most of them"
    assert whose_port({1: "b", 2: "a"}, [], "a", has_turn=True) == 2, (
        "the newcomer counts: another port of its own goes"
    )


def test_a_target_on_its_way_keeps_its_port_from_owners_with_more_ports_and_from_those_without_a_turn() -> None:
    assert whose_port({1: "a"}, ["b"], "b", has_turn=True) is None
    assert whose_port({1: "a"}, [], "b", has_turn=False) is None
    assert whose_port({1: "a"}, ["a"], "b", has_turn=False) == 1
    assert whose_port({1: "a", 2: "b"}, ["a"], "b", has_turn=False) == 2


def test_who_got_a_port_just_now_waits_for_its_next_turn() -> None:
    turns = Turns()
    assert turns.has_turn("a", 0.0)
    turns.note("a", 0.0)
    turns.note("b", 1.0)
    assert not turns.has_turn("a", TURN_S - 0.1)
    assert turns.has_turn("a", TURN_S)
    for number in range(MAX_OWNERS):
        turns.note(str(number), 1.0)
    assert turns.has_turn("b", 1.0), "so many are remembered"
