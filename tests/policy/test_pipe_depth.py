"""How many launches are in flight: as many as keep the slowest stage busy, and not more."""

from __future__ import annotations

import pytest

from starspec.policy.pipe_depth import MAX_DEPTH, PipeDepth


def depth_of(links_s: float, stages_s: tuple[float, ...], fixed: int | None = None) -> int:
    """After many traversals of a pipe, in which launches wait where too many are in flight."""
    depth = PipeDepth(fixed)
    for _ in range(200):
        depth.add(max(links_s + sum(stages_s), depth.value * max(stages_s)), max(stages_s))
    return depth.value


def test_one_launch_until_anything_is_measured() -> None:
    assert PipeDepth().value == 1


@pytest.mark.parametrize(
    ("links_s", "stages_s", "expected"),
    [
        (0.0, (0.1,), 1),
        (0.05, (0.1, 0.1), 2),
        (0.11, (0.1, 0.1), 2),
        (0.12, (0.1, 0.1), 3),
        (0.0, (0.1, 0.3), 1),  # two would be one that waits
        (0.3, (0.1, 0.3), 2),
    ],
)
def test_so_many_that_the_slowest_stage_is_busy_and_nobody_waits_for_it(
    links_s: float, stages_s: tuple[float, ...], expected: int
) -> None:
    assert depth_of(links_s, stages_s) == expected


def test_far_stages_do_not_split_the_sequences_into_more_than_a_few_rounds() -> None:
    assert depth_of(10.0, (0.01, 0.01)) == MAX_DEPTH


def test_links_that_become_fast_need_fewer_in_flight() -> None:
    depth = PipeDepth()
    for _ in range(100):
        depth.add(1.0, 0.1)
    assert depth.value == MAX_DEPTH
    for _ in range(100):
        depth.add(max(0.2, depth.value * 0.1), 0.1)
    assert depth.value <= 2


def test_an_operators_depth_is_kept() -> None:
    assert depth_of(10.0, (0.01, 0.01), fixed=2) == 2
