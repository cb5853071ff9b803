"""Who gives its place to a newcomer, and who keeps it."""

from __future__ import annotations

from collections import Counter
from random import Random

from starspec.policy.newcomers import IDLE_S, MAX_COMING, idlest, longest_idle, num_kept, who_stops_coming


def test_a_newcomer_gets_one_place_of_idle_targets_and_none_of_others() -> None:
    assert num_kept([], 100.0) == 0
    assert num_kept([100.0, 100.0 - IDLE_S / 2], 100.0) == 2
    assert num_kept([100.0, 100.0 - IDLE_S], 100.0) == 1
    assert num_kept([0.0, 1.0, 2.0], 100.0) == 2, "one newcomer needs one place"


def test_of_targets_the_one_that_asked_for_nothing_for_longest_gives_way() -> None:
    assert idlest({"a": 3.0, "b": 1.0, "c": 2.0}) == "b"


def test_few_targets_on_their_way_are_left_alone_and_of_many_anyone_may_be_given_up() -> None:
    chance, coming = Random(1), range(MAX_COMING)
    assert who_stops_coming(coming[:-1], chance) is None
    given_up = Counter(who_stops_coming(coming, chance) for _ in range(100 * MAX_COMING))
    assert given_up.keys() == set(coming)
    assert max(given_up.values()) < 200, "nobody is given up much more often than others"


def test_the_connection_idle_for_longest_gives_way_to_one_of_its_address_or_of_any() -> None:
    idle = {"a": "here", "b": "there", "c": "there"}
    assert longest_idle(idle) == "a"
    assert longest_idle(idle, "there") == "b"
    assert longest_idle(idle, "elsewhere") is None
    assert longest_idle({}) is None
