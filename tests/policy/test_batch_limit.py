"""As many share a draft step as pay: always all where company is cheaper, and nobody is shut out by a slow moment."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Any

import pytest
from hub_toys import ToyStar, ToyTag
from hypothesis import given
from hypothesis import strategies as st

from starspec.models.runner import ForwardOutput, Segment
from starspec.policy.batch_limit import NUM_REMEMBERED, REVIEW_STEPS, BatchLimit


def crowd(limit: BatchLimit, cost: Callable[[int], float], num_steps: int, seed: int = 1) -> list[int]:
    """1 to 40 wait for each draft step. Returns: how many shared it."""
    rng, sizes = random.Random(seed), list[int]()
    for _ in range(num_steps):
        num_waiting = rng.choice((1, 2, 3, 6, 12, 24, 40))
        sizes.append(num_waiting if limit.max_sequences is None else min(num_waiting, limit.max_sequences))
        limit.add(sizes[-1], cost(sizes[-1]))
    return sizes


@given(alone=st.floats(0.001, 0.1), share=st.floats(0.0, 1.0), seed=st.integers(0, 99))
def test_while_company_is_cheaper_there_is_no_limit(alone: float, share: float, seed: int) -> None:
    """StarSD's model and ours: t_s (1 + share (b - 1)); and a draft step may take up to a tenth more or less."""
    rng, limit = random.Random(seed), BatchLimit()
    sizes = crowd(limit, lambda num: alone * (1 + share * (num - 1)) * rng.uniform(0.9, 1.1), 1_000, seed)
    assert sizes.count(40) > 100
    assert limit.max_sequences is None


def cliff(num_sequences: int) -> float:
    """A cache that holds eight sequences."""
    return 0.010 + 0.001 * num_sequences + (0.005 * num_sequences if num_sequences > 8 else 0.0)


def steep(num_sequences: int) -> float:
    return 0.001 * num_sequences**2


@pytest.mark.parametrize(("cost", "most"), [(cliff, 8), (steep, 1)])
def test_who_would_make_a_draft_step_dearer_for_each_waits_for_another(cost: Callable[[int], float], most: int) -> None:
    sizes = crowd(BatchLimit(), cost, 3_000)[1_000:]
    assert sum(size > most for size in sizes) <= len(sizes) // REVIEW_STEPS + 1, "but for a look now and then"
    assert sizes.count(most) > 700


def test_slow_moments_shut_nobody_out() -> None:
    rng, limit = random.Random(7), BatchLimit()
    sizes = crowd(limit, lambda num: (0.01 + 0.001 * num) * (50.0 if rng.random() < 0.1 else 1.0), 5_000)
    assert sizes.count(40) > 500


def test_a_limit_ends_when_large_draft_steps_pay_again() -> None:
    limit = BatchLimit()
    crowd(limit, cliff, 1_500)
    assert limit._limit == 8
    crowd(limit, lambda num: 0.010 + 0.001 * num, 8 * NUM_REMEMBERED * REVIEW_STEPS)
    assert limit._limit is None


def test_a_hub_keeps_to_the_limit_that_it_finds() -> None:
    star, numbers = ToyStar("a", num_rows=8, max_len=400), count(1)
    forward = star.runner.forward

    def steeply(segments: Sequence[Segment], **options: Any) -> ForwardOutput:
        star.clock.advance(steep(len(segments)))
        return forward(segments, **options)

    star.runner.forward = steeply
    for num_together in (1, 2, 4, 8, 8, 8):
        for _ in range(30):
            tags = {number: ToyTag(number, [number % 30, 2]) for number in islice(numbers, num_together)}
            star.send("a", *(tag.open(2) for tag in tags.values()))
            for _, message in star.drain():
                assert tags[message.tag].receive(message)
                assert message.token_ids == tags[message.tag].expected(2, 400)
            star.send("a", *(tag.close() for tag in tags.values()))
    assert star.hub.status(star.clock()).stats.max_batch == 1
    assert len(star.runner.draft_steps[-1]) == 1
