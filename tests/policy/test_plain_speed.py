"""What a target knows of its speed without drafts, and what it costs to know it."""

from __future__ import annotations

import pytest
from toy_hub import STEP_S, Star, ToyHub, VirtualClock

from starspec.ids import LinkId
from starspec.policy.plain_speed import MIN_ROUNDS, NUM_ROUNDS, PERIOD_S, PlainSpeed
from starspec.wire.messages import PROTOCOL_VERSION, Ping, TargetToHub, Welcome

PROMPT = list(range(1, 12))
SPEED = 1 / STEP_S


def welcome(*, is_wanted: bool) -> Welcome:
    return Welcome(PROTOCOL_VERSION, LinkId("s"), 1, "draft", 64, 10.0, is_plain_speed_wanted=is_wanted)


class ListeningHub(ToyHub):
    """Remembers what it was told of plain speed."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.told: list[float] = []

    def send(self, messages: list[TargetToHub]) -> None:
        self.told += [message.plain_tokens_per_s for message in messages if isinstance(message, Ping)]
        super().send(messages)


class StarThatListens(Star):
    def make_hub(self) -> ToyHub:
        return ListeningHub(self.clock)


def test_nothing_is_known_before_some_rounds_and_one_slow_round_changes_little() -> None:
    speed = PlainSpeed()
    for _ in range(MIN_ROUNDS - 1):
        assert speed.is_due(1, 0.0)
        speed.add_round(0.02, 1, 0.0)
    assert speed.tokens_per_s(1) == 0.0
    speed.add_round(5.0, 1, 0.0)
    assert speed.tokens_per_s(1) == pytest.approx(50.0)
    assert not speed.is_due(1, PERIOD_S - 1)
    assert speed.is_due(1, PERIOD_S)


def test_a_load_that_has_changed_is_known_as_soon_as_it_is_measured_anew() -> None:
    speed = PlainSpeed()
    for _ in range(NUM_ROUNDS):
        speed.add_round(0.02, 1, 0.0)
    for number in range(MIN_ROUNDS):
        assert speed.is_due(1, PERIOD_S), "what is known is a minute old"
        assert speed.tokens_per_s(1) == pytest.approx(50.0), "and is told until more is known"
        speed.add_round(0.04, 1, PERIOD_S + number / 100)
    assert not speed.is_due(1, PERIOD_S)
    assert speed.tokens_per_s(1) == pytest.approx(25.0)


def test_rounds_of_many_say_nothing_of_rounds_of_one() -> None:
    speed = PlainSpeed()
    for _ in range(MIN_ROUNDS):
        speed.add_round(0.05, 16, 0.0)
    assert speed.tokens_per_s(16) == pytest.approx(20.0)
    assert speed.tokens_per_s(1) == pytest.approx(20.0), "better than nothing"
    assert not speed.is_due(20, 0.0), "of nearly as many"
    assert speed.is_due(1, 0.0)
    for _ in range(MIN_ROUNDS):
        speed.add_round(0.02, 1, 0.0)
    assert speed.tokens_per_s(1) == pytest.approx(50.0)
    assert speed.tokens_per_s(16) == pytest.approx(20.0)


def test_rounds_without_drafts_are_spent_only_where_the_hub_wants_to_know() -> None:
    counts = {}
    for is_wanted in (False, True):
        star = Star()
        star.hub.welcome = welcome(is_wanted=is_wanted)
        star.submit("a", PROMPT, 40)
        star.finish()
        counts[is_wanted] = star.stats.num_rounds - star.stats.acceptance.num_drafts
        assert (star.stats.plain_tokens_per_s > 0) == is_wanted
    assert counts[True] == counts[False] + MIN_ROUNDS
    assert star.stats.plain_tokens_per_s == pytest.approx(SPEED, rel=0.01)


def test_the_hub_is_told_with_pings_and_a_target_that_it_declines_measures_itself() -> None:
    star = StarThatListens()
    star.hub.mood = "full"
    star.submit("a", PROMPT, 70)
    star.finish()
    assert star.stats.num_declined > 0
    assert star.hub.told[0] == 0.0
    assert star.hub.told[-1] == pytest.approx(SPEED, rel=0.01)


def test_a_hub_without_room_is_not_told_of_new_requests_either_until_it_wants_to_be() -> None:
    star = Star()
    star.hub.mood = "full"
    star.submit("a", PROMPT, 70)
    star.step()
    star.step()
    assert star.hub.num_opens == 1
    star.submit("b", PROMPT, 70)
    for _ in range(3):
        star.step()
    assert star.hub.num_opens == 1
    star.hub.mood = "good"
    star.finish()
    assert star.hub.num_opens == 3
