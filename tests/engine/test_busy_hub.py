"""A hub that computes is silent for long and there all the same; one that hangs is not. Targets tell them apart."""

from __future__ import annotations

import pytest
from toy_hub import PREFILL_S, STEP_S, SlowRunner, Star

from starspec.policy.deadline import MAX_GAP_S
from starspec.policy.liveness import DOUBT_S
from starspec.policy.patience import FIRST_PREFILL_WAIT_S, MAX_MISSES

PROMPT = [1, 2, 3, 4, 5, 6, 7]
LATE_S = 0.4  # what a hub needs that is busy: too long for a round, short enough to catch up


class LongStar(Star):
    """Its requests go on for as long as a test wants to look at them."""

    def make_runner(self) -> SlowRunner:
        return SlowRunner(self.clock, max_len=1200)


def running_star() -> Star:
    star = LongStar()
    star.submit("a", PROMPT, 1000)
    for _ in range(6):
        star.step()
    return star


def rounds_late(star: Star, num_rounds: int) -> int:
    before = star.stats.num_late_rounds
    for _ in range(num_rounds):
        star.step()
    return star.stats.num_late_rounds - before


@pytest.mark.parametrize("busy_s", [1.0, 4.0])
def test_a_hub_without_a_proposal_for_seconds_is_kept_while_it_answers_pings(busy_s: float) -> None:
    star = running_star()
    degraded_s = star.stats.degraded_s
    star.hub.busy_s = busy_s
    rounds_late(star, 20)
    assert star.drafts.is_connected
    star.hub.busy_s = 0.0
    star.finish()
    assert star.hub.num_opens == 1  # nothing was told anew
    assert star.stats.degraded_s == degraded_s


def test_a_hub_that_hangs_is_left_after_one_silent_round_and_an_unanswered_ping() -> None:
    star = running_star()
    star.hub.mood = "frozen"
    assert rounds_late(star, 1) == 1
    hangs_at_s, num_late = star.clock.now + DOUBT_S, 1
    while star.drafts.is_connected:
        num_late += rounds_late(star, 1)
        assert star.clock.now <= hangs_at_s + 0.1
    assert star.clock.now >= hangs_at_s
    assert num_late <= 2  # nobody waits for the pong
    assert rounds_late(star, 10) == 0
    star.finish()


def test_a_hub_that_hangs_and_works_by_turns_is_not_left_for_silences_far_apart() -> None:
    star = running_star()
    for _ in range(4):
        star.hub.mood = "frozen"
        assert rounds_late(star, 1) == 1
        star.hub.mood = "good"
        rounds_late(star, int(1.2 * DOUBT_S / STEP_S))
        assert star.drafts.is_connected
    star.finish()


def while_another_prompt_is_prefilled(star: Star) -> int:
    """Returns: late rounds until both have drafts again."""
    star.hub.mood, star.hub.busy_s = "prefilling", PREFILL_S
    star.submit("b", PROMPT[1:], 1000)
    late = rounds_late(star, 4)
    star.hub.mood, star.hub.busy_s = "good", 0.0
    return late + rounds_late(star, int(PREFILL_S / STEP_S))


def test_while_a_prompt_is_prefilled_the_others_wait_once_and_join_again_with_one_verdict() -> None:
    star = running_star()
    assert 1 <= while_another_prompt_is_prefilled(star) <= 2  # once for each of the two
    accepted = star.stats.acceptance.num_accepted_tokens
    assert rounds_late(star, 8) == 0
    assert star.stats.acceptance.num_accepted_tokens >= accepted + 2 * 8  # both have drafts, nobody pauses
    star.finish()
    assert star.hub.num_opens == 2


def test_a_prompt_that_is_prefilled_for_long_excuses_who_is_late_once_and_not_for_ever() -> None:
    star = running_star()
    star.hub.num_opens_lost, star.hub.busy_s = 1, MAX_GAP_S
    star.submit("b", PROMPT[1:], 1000)
    until_s = star.clock.now + FIRST_PREFILL_WAIT_S - 1.0
    num_late = 0
    while star.clock.now < until_s:
        num_late += rounds_late(star, 1)
    assert num_late <= 2 + MAX_MISSES + 5  # then pauses of 16, 32, 64, 128 and 256 rounds
    star.hub.busy_s = 0.0
    star.finish()


def test_an_open_and_a_verdict_that_are_lost_cost_their_tags_a_while_and_no_more() -> None:
    star = running_star()
    kept = star.hub.mail[:]
    star.hub.mood, star.hub.busy_s = "prefilling", PREFILL_S
    star.submit("b", PROMPT[1:], 1000)
    rounds_late(star, 3)
    star.hub.mail = [each for each in star.hub.mail if each in kept]  # no answer of these rounds arrives
    star.hub.mood, star.hub.busy_s = "good", 0.0
    for _ in range(30):
        star.clock.now += 0.5  # a slow machine
        star.step()
    assert star.hub.num_opens == 4  # both are told anew
    accepted = star.stats.acceptance.num_accepted_tokens
    assert rounds_late(star, 8) == 0
    assert star.stats.acceptance.num_accepted_tokens > accepted + 8
    star.finish()


def paused_star() -> Star:
    """The hub was late until it was left alone; the question that ends the pause has been asked, and not answered."""
    star = running_star()
    star.hub.busy_s = LATE_S
    rounds_late(star, 12)
    assert rounds_late(star, 8) == 0
    while not rounds_late(star, 1):
        pass
    return star


def test_who_asks_first_after_a_pause_lets_the_hub_catch_up() -> None:
    star = paused_star()
    star.hub.busy_s = 0.0
    num_until_answer = int((LATE_S - 0.8 * MAX_GAP_S) / STEP_S)  # a round has waited for the deadline already
    assert rounds_late(star, num_until_answer + 2) == 0
    accepted = star.stats.acceptance.num_accepted_tokens
    assert rounds_late(star, 8) == 0
    assert star.stats.acceptance.num_accepted_tokens > accepted + 8  # no second pause
    star.finish()


def test_while_the_hub_catches_up_nobody_waits_for_it() -> None:
    star = paused_star()
    star.submit("b", PROMPT[1:], 1000)
    assert rounds_late(star, 10) == 0
    star.finish()
