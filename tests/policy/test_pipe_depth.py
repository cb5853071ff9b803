"""How many launches are in flight: as many as fill the pipe, and not more."""

from __future__ import annotations

import pytest

from starspec.policy.pipe_depth import MAX_DEPTH, PipeDepth


def depth_of(num_stages: int, links_s: float, compute_s: float, fixed: int | None = None) -> int:
    depth = PipeDepth(num_stages, fixed)
    for _ in range(30):
        depth.add(links_s + compute_s, compute_s)
    return depth.value


def test_one_launch_until_anything_is_measured() -> None:
    assert PipeDepth(4).value == 1


@pytest.mark.parametrize(("num_stages", "links_s", "expected"), [(2, 0.0, 2), (2, 0.05, 3), (1, 0.05, 1), (1, 0.2, 3)])
def test_so_many_that_the_slowest_stage_has_no_pause(num_stages: int, links_s: float, expected: int) -> None:
    assert depth_of(num_stages, links_s, 0.1) == expected


def test_far_stages_do_not_split_the_sequences_into_more_than_a_few_rounds() -> None:
    assert depth_of(4, 10.0, 0.01) == MAX_DEPTH


def test_an_operators_depth_is_kept() -> None:
    assert depth_of(4, 10.0, 0.01, fixed=2) == 2
