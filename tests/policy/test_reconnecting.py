"""When a target tries again to reach its hub, and when people hear of it."""

from __future__ import annotations

import math

from starspec.policy.reconnecting import (
    BREACH_S,
    HINT_S,
    KEEP_ALIVE_S,
    LONGEST_BREACH_S,
    LONGEST_REFUSAL_S,
    LONGEST_RETRY_S,
    REFUSED_RETRY_S,
    RETRY_S,
    STABLE_S,
    START_S,
    Reconnecting,
    after_refusal_s,
    keep_alive_s,
)


def test_after_a_stable_link_a_target_tries_again_at_once_and_then_ever_later() -> None:
    links, now, waits_s = Reconnecting(), 0.0, list[float]()
    for _ in range(8):
        links.note_connected(now)
        waits_s.append(links.after_loss_s(now))
    assert waits_s[:3] == [0.0, RETRY_S, 2 * RETRY_S]
    assert waits_s[-1] == LONGEST_RETRY_S
    links.note_connected(now)
    assert links.after_loss_s(now + STABLE_S) == 0.0
    assert links.after_loss_s(now + STABLE_S, least_s=3.0) == 3.0


def test_a_hub_that_breaks_the_rules_is_left_alone_for_longer() -> None:
    links = Reconnecting()
    waits_s = [links.after_breach_s(0.0) for _ in range(10)]
    assert (waits_s[0], waits_s[1], waits_s[-1]) == (BREACH_S, 2 * BREACH_S, LONGEST_BREACH_S)


def test_a_refused_target_tries_again_when_the_hub_says() -> None:
    assert after_refusal_s(None) == REFUSED_RETRY_S
    assert after_refusal_s(30.0) == 30.0
    assert after_refusal_s(0.0) == RETRY_S, "a hub cannot make it ask all the time"
    assert after_refusal_s(1e308) == LONGEST_REFUSAL_S, "nor keep it away for ever, from a hub in its place, too"
    assert after_refusal_s(math.inf) == LONGEST_REFUSAL_S


def test_a_lease_is_renewed_several_times_before_it_ends() -> None:
    assert keep_alive_s(100.0) == KEEP_ALIVE_S
    assert keep_alive_s(2.0) == 0.5


def test_people_hear_of_a_hub_that_does_not_come_once_soon_and_once_as_a_warning() -> None:
    links = Reconnecting()
    assert links.note_unanswered(5.0, has_warned=False) is None
    assert links.note_unanswered(5.0 + HINT_S, has_warned=False) is None
    assert links.note_unanswered(5.1 + HINT_S, has_warned=False) == "hint"
    assert links.note_unanswered(5.2 + HINT_S, has_warned=False) is None
    assert links.note_unanswered(5.1 + START_S, has_warned=False) == "warning"
    assert links.note_unanswered(5.2 + START_S, has_warned=True) is None
