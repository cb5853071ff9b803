"""A draft step ahead is as wide as rows are cheap: never slower than one fixed width, and faster where rows are
dear.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hub_toys import ToyStar, ToyTag
from hypothesis import given
from hypothesis import strategies as st
from synthetic_star import SyntheticStar

from starspec.models.runner import ForwardOutput, Segment
from starspec.models.synthetic import runner as synthetic
from starspec.policy.run_ahead_width import MAX_RATIO, MIN_STEPS, NUM_ENOUGH, REVIEW_STEPS, SIZES, AheadWidth, share

NUM_TO_LEARN = len(SIZES) * MIN_STEPS
FIXED = 12  # nodes of each draft step, whatever they cost


def run_ahead(width: AheadWidth, seconds: Callable[[int], float], num_steps: int, num_sequences: int = 1) -> list[int]:
    """Returns: the nodes of so many draft steps, as wide as they may be."""
    widths = []
    for _ in range(num_steps):
        widths.append(width.choose(num_sequences))
        width.add(widths[-1], seconds(widths[-1]))
    return widths


def linear(row_cost: float) -> Callable[[int], float]:
    return lambda num_nodes: 0.010 * (1.0 + row_cost * (num_nodes - 1))


@pytest.mark.parametrize(("row_cost", "widest"), [(0.0, 12), (0.02, 12), (0.1, 6), (0.25, 3), (0.5, 2), (1.0, 1)])
def test_a_draft_step_is_the_widest_that_costs_little_more_than_one_node(row_cost: float, widest: int) -> None:
    width = AheadWidth()
    run_ahead(width, linear(row_cost), NUM_TO_LEARN)
    widths = run_ahead(width, linear(row_cost), 2 * REVIEW_STEPS)
    assert widths.count(widest) >= 2 * REVIEW_STEPS - 2, "but for a look now and then"


@given(st.floats(0.0, 1.0), st.integers(1, 40))
def test_a_draft_step_is_within_its_bound_whoever_shares_it(row_cost: float, num_sequences: int) -> None:
    cost, width = linear(row_cost), AheadWidth()
    run_ahead(width, cost, NUM_TO_LEARN + MIN_STEPS, num_sequences)
    ((chosen, _),) = Counter(run_ahead(width, cost, 2 * REVIEW_STEPS, num_sequences)).most_common(1)
    assert cost(chosen) <= MAX_RATIO * cost(num_sequences if chosen >= num_sequences else 1) + 1e-9
    assert chosen <= max(NUM_ENOUGH, num_sequences)


@given(st.integers(0, 64), st.integers(1, 40))
def test_nodes_are_shared_as_equally_as_can_be_and_none_is_left(num_nodes: int, num_sequences: int) -> None:
    shares = [share(num_nodes, num_sequences, num_served) for num_served in range(num_sequences)]
    assert sum(shares) == num_nodes
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1


def test_sizes_that_are_too_dear_are_not_tried_on_the_way() -> None:
    assert max(run_ahead(AheadWidth(), linear(0.5), NUM_TO_LEARN)) == 3


def test_slow_moments_narrow_no_draft_step() -> None:
    rng, width = random.Random(3), AheadWidth()
    widths = run_ahead(width, lambda num: linear(0.01)(num) * (50.0 if rng.random() < 0.1 else 1.0), 3_000)
    assert widths.count(12) > 2_500


def test_draft_steps_are_wide_again_when_rows_are_cheap_again() -> None:
    width = AheadWidth()
    run_ahead(width, linear(1.0), 500)
    assert width.choose(1) == 1
    run_ahead(width, linear(0.0), 15 * len(SIZES) * REVIEW_STEPS)
    assert width.choose(1) == 12


@pytest.mark.parametrize(
    ("row_cost", "gain", "least"), [(0.02, 0.97, 74.0), (0.1, 1.1, 64.0), (0.5, 1.25, 60.5), (1.0, 1.6, 66.0)]
)
def test_a_hub_is_never_slower_by_it_and_faster_where_rows_are_dear(
    row_cost: float, gain: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for its first draft steps, which are narrow while it learns.

    Args:
        gain: over the fixed width.
        least: tokens a second.
    """
    monkeypatch.setattr(synthetic, "LOOK_S", 0.0025)  # fewer looks, the same times
    rates = {}
    for kind in ("measured", "fixed"):
        if kind == "fixed":
            monkeypatch.setattr(AheadWidth, "choose", lambda *_: FIXED)
        rates[kind] = SyntheticStar.amusd(1, "outcomes", row_cost=row_cost, alpha=0.832, depth=4).decode(1200)
    assert rates["measured"] >= gain * rates["fixed"]
    assert rates["measured"] >= least


def test_where_rows_are_dear_sequences_take_turns() -> None:
    star, tags = ToyStar("a", run_ahead="outcomes"), [ToyTag(number, [number, 5, 6]) for number in (1, 2, 3)]
    forward = star.runner.forward

    def by_rows(segments: Sequence[Segment], **options: Any) -> ForwardOutput:
        star.clock.advance(0.01 * sum(segment.num_new for segment in segments))
        return forward(segments, **options)

    star.runner.forward = by_rows
    star.send("a", *(tag.open(4) for tag in tags))
    while star.hub.stats.num_ahead_nodes < 20:  # of some two hundred that there are
        star.step()
    last = star.runner.draft_steps[-3:]
    assert [sum(segment.num_new for segment in draft_step) for draft_step in last] == [1, 1, 1]
    assert len({segment.row for draft_step in last for segment in draft_step}) == 3


def test_a_hub_with_several_targets_does_not_lose_by_dear_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "LOOK_S", 0.0025)
    rates = {
        mode: SyntheticStar.amusd(3, mode, row_cost=1.0, alpha=0.6, depth=4).decode(600) for mode in ("off", "outcomes")
    }
    assert rates["outcomes"] > rates["off"]
