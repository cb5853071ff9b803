"""Who gives its place to a newcomer, and who keeps it."""

from __future__ import annotations

from collections import Counter
from random import Random

from starspec.policy.newcomers import (
    GRACE_S,
    IDLE_S,
    MAX_COMING,
    PROGRESS_BYTES,
    Wait,
    idlest,
    num_kept,
    who_gives_way,
    who_stops_coming,
)


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
