"""AdaEDL's bound and threshold, by hand."""

from __future__ import annotations

from math import inf, sqrt

import pytest

from starspec.policy.length.adaedl import GAMMA, AdaEdl, max_entropy
from starspec.policy.length.snapshot import RoundSnapshot, SequenceSnapshot
from starspec.policy.length.stop_threshold import FIRST, StopThreshold
from starspec.speculation.budget import DraftBudget


def test_drafting_stops_at_the_entropy_where_the_bound_is_the_threshold() -> None:
    for threshold in (0.1, 0.4, 0.9, 1.0):
        assert 1.0 - sqrt(GAMMA * max_entropy(threshold)) == pytest.approx(threshold)
    assert max_entropy(0.0) == inf  # a bound below 0 says nothing


def test_the_threshold_moves_against_the_acceptance_a_tenth_of_a_step_a_round() -> None:
    threshold = StopThreshold()
    threshold.add_round(10, 9)  # 0.9, as wanted
    assert threshold.value == pytest.approx(FIRST)
    threshold.add_round(4, 4)  # mean acceptance 0.95 > 0.9
    assert threshold.value == pytest.approx(FIRST - 0.001)
    threshold.add_round(4, 0)  # 0.475
    assert threshold.value == pytest.approx(FIRST)
    threshold.add_round(0, 0)
    assert threshold.value == pytest.approx(FIRST)


@pytest.mark.parametrize(("num_accepted", "end"), [(0, 1.0), (4, 0.0)])
def test_the_threshold_stays_a_probability(num_accepted: int, end: float) -> None:
    threshold = StopThreshold()
    for _ in range(2000):
        threshold.add_round(4, num_accepted)
    assert threshold.value == end


def test_budgets_have_the_sequences_own_threshold_and_no_more_tokens_than_asked_for() -> None:
    doubted = StopThreshold()
    for _ in range(100):
        doubted.add_round(4, 0)
    sequences = [
        SequenceSnapshot(max_remaining_tokens=100),
        SequenceSnapshot(max_remaining_tokens=100, stop_threshold=doubted),
        SequenceSnapshot(max_remaining_tokens=3, num_steps_asked=9),
    ]
    chosen = AdaEdl(DraftBudget.chain(6)).choose(RoundSnapshot(sequences=sequences, num_sequences=3))
    first, second, third = (each.budget for each in chosen)
    assert (first.num_draft_tokens, second.num_draft_tokens, third.num_draft_tokens) == (6, 6, 2)
    assert first.max_entropy == third.max_entropy == max_entropy(FIRST) > second.max_entropy
