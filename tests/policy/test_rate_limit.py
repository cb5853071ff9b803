"""Nobody gets more than its rate for long, and whoever has had it goes on alone."""

from __future__ import annotations

import pytest
from hub_toys import ToyStar, ToyTag
from hypothesis import given
from hypothesis import strategies as st

from starspec.policy.peer_limits import RATE_BURST_S, rate_limit


@given(
    rate=st.floats(0.5, 500.0),
    asks=st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 64)), min_size=1, max_size=60),
)
def test_over_any_time_no_more_than_the_rate_a_burst_and_a_proposal(rate: float, asks: list[tuple[float, int]]) -> None:
    limit, now, given_at = rate_limit(rate), 0.0, list[tuple[float, int]]()
    for pause_s, num_tokens in asks:
        now += pause_s
        if limit.has_units(now):
            limit.take(num_tokens, now)
            given_at.append((now, num_tokens))
    for first in range(len(given_at)):
        for last in range(first, len(given_at)):
            span_s = given_at[last][0] - given_at[first][0]
            before_last = sum(num for _, num in given_at[first:last])
            assert before_last <= rate * (span_s + RATE_BURST_S) + 1e-6


@given(rate=st.floats(0.5, 500.0), num_tokens=st.integers(1, 64))
def test_who_has_had_its_rate_gets_more_in_time(rate: float, num_tokens: int) -> None:
    limit = rate_limit(rate)
    assert limit.has_units(5.0)
    limit.take(num_tokens, 5.0)
    assert limit.has_units(5.0 + num_tokens / rate + 0.01)


def served(star: ToyStar, name: str, num_rounds: int, round_s: float) -> list[int]:
    """Tokens of each proposal; the target decodes alone where there are none."""
    tag = ToyTag(1, [1, 2])
    star.send(name, tag.open(4))
    sizes = []
    for _ in range(num_rounds):
        for receiver, message in star.drain():
            assert receiver == name
            assert tag.receive(message)
        assert tag.proposal is not None, "every request is answered"
        assert not tag.proposal.retry_after_s
        sizes.append(len(tag.proposal.token_ids))
        assert tag.proposal.token_ids in ([], tag.expected(4, 400))
        star.clock.advance(round_s)
        star.send(name, tag.verdict([7], 4))
    star.drain()
    star.send(name, tag.close())
    return sizes


def test_a_target_beyond_its_rate_gets_empty_proposals_and_keeps_its_row() -> None:
    star = ToyStar("a", max_len=400, rate_limits={"a": 20.0})
    sizes = served(star, "a", 200, 0.05)
    assert sum(sizes) == pytest.approx(20.0 * (200 * 0.05 + RATE_BURST_S), abs=8)
    assert sizes.count(0) > 100
    assert star.hub.stats.num_rationed - sizes.count(0) in (0, 1), "the last answer was not looked at"
    num_read = sum(segment.num_new for draft_step in star.runner.draft_steps for segment in draft_step)
    assert num_read < 200 + sum(sizes) + 10, "what it has said is read once"


def test_many_tags_that_ask_at_once_get_no_more_than_one_does() -> None:
    star = ToyStar("a", num_rows=64, max_len=400, max_tags=64, rate_limits={"a": 20.0})
    tags = {number: ToyTag(number, [1, 2]) for number in range(1, 65)}
    star.send("a", *(tag.open(4) for tag in tags.values()))
    sizes = []
    for _ in range(40):
        replies = star.drain()
        sizes.append(sum(len(message.token_ids) for _, message in replies))
        assert all(tags[message.tag].receive(message) for _, message in replies)
        star.clock.advance(0.5)
        star.send("a", *(tag.verdict([7], 4) for tag in tags.values()))
    assert max(sizes) <= 20.0 * RATE_BURST_S + 4
    assert sum(sizes) == pytest.approx(20.0 * (20.0 + RATE_BURST_S), abs=16)
    assert sizes.count(0) < 5, "in every round there is something, and not all in one"


def test_others_are_not_limited_and_a_target_that_comes_back_is_still() -> None:
    star = ToyStar("a", "b", max_len=400, rate_limits={"a": 4.0})
    assert 0 not in served(star, "b", 20, 0.01)
    assert 0 < sum(served(star, "a", 20, 0.001)) <= 8
    star.hub.leave("a", star.clock())
    star.hub.join("a", "a", 32)
    assert sum(served(star, "a", 20, 0.001)) == 0
