"""Features of one tag: what the hub is told of them, and what no head could read."""

from __future__ import annotations

import pytest
import torch

from starspec.cache.features import MAX_FEATURE
from starspec.engine.sequence_at_hub import FeatureOutbox, FeatureRequest
from starspec.ids import Tag

TERMS = FeatureRequest(layers=(1,), window=16)
BAD = [float("nan"), float("inf"), -2 * MAX_FEATURE]


def told(numbers: list[float], start: int = 0) -> FeatureOutbox:
    features = FeatureOutbox(TERMS)
    features.add(start, torch.tensor(numbers).unsqueeze(1).repeat(1, 4))
    return features


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", range(4))
def test_what_lies_up_to_an_unreadable_position_is_not_told(bad: float, place: int) -> None:
    numbers = [1.0, 2.0, 3.0, 4.0]
    numbers[place] = bad
    features = told(numbers)
    assert features.reach(4) == (place < 3)
    frames = features.frames(Tag(1), 5)
    assert [(each.start, each.num_positions) for each in frames] == ([(place + 1, 3 - place)] if place < 3 else [])


@pytest.mark.parametrize("bad", BAD)
def test_behind_a_hole_features_begin_anew(bad: float) -> None:
    features = told([1.0, 2.0])
    features.frames(Tag(1), 3)
    features.add(2, torch.full((1, 4), bad))
    assert not features.reach(3)
    assert features.frames(Tag(1), 4) == []
    features.add(3, torch.ones(2, 4))
    assert features.reach(5)
    assert [(each.start, each.num_positions) for each in features.frames(Tag(1), 6)] == [(3, 2)]


def test_the_largest_feature_that_a_head_reads_is_told() -> None:
    assert told([MAX_FEATURE, -MAX_FEATURE]).reach(2)
