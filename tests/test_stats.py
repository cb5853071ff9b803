"""Each statistic's definition, on a worked example."""

from __future__ import annotations

import pytest

from starspec.stats import AcceptanceStats, Mean, RequestStats, TargetStats

ROUNDS = [(4, 4, 5), (4, 0, 1), (0, 0, 1), (2, 1, 1)]  # drafted, accepted, emitted (the last one cut at eos)


def test_acceptance_counts_drafts_and_excludes_the_targets_own_token():
    stats = AcceptanceStats()
    for each in ROUNDS:
        stats.add_round(*each)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 10, 5)
    assert stats.num_accepted_tokens_per_pos == [2, 1, 1, 1]
    assert stats.acceptance_rate == 0.5
    assert stats.acceptance_length == pytest.approx(1 + 5 / 3)
    assert stats.block_efficiency == 8 / 4


def test_nothing_counted_yet_divides_by_nothing():
    stats = AcceptanceStats()
    assert (stats.acceptance_rate, stats.acceptance_length, stats.block_efficiency) == (0.0, 1.0, 0.0)
    assert TargetStats().rounds_per_s == 0.0


def test_histogram_counts_speculative_rounds_only():
    stats = RequestStats()
    for each in ROUNDS:
        stats.add_round(*each)
    assert stats.acceptance_histogram == [1, 1, 0, 0, 1]
    assert stats.acceptance.num_forwards == 4


def test_a_mean_starts_at_its_first_value_and_follows_recent_ones():
    mean = Mean()
    mean.add(3.0)
    assert mean.value == 3.0
    for _ in range(200):
        mean.add(1.0)
    assert mean.value == pytest.approx(1.0, abs=1e-3)


def test_return_time_and_round_rate_follow_the_paper():
    stats = TargetStats()
    stats.t_c.add(0.002)
    stats.t_v.add(0.1)
    stats.round.add(0.2)
    assert stats.return_time_s == pytest.approx(0.102)
    assert stats.rounds_per_s == pytest.approx(5.0)


def test_several_answers_add_up_and_wait_as_long_as_the_slowest():
    answers = [RequestStats(num_spec_tokens=4, queue_s=wait, generation_s=1.0) for wait in (0.1, 0.3)]
    for each, rounds in zip(answers, (ROUNDS, ROUNDS[1:]), strict=True):
        for numbers in rounds:
            each.add_round(*numbers)
    both = RequestStats.sum_of(answers)
    assert both.acceptance_histogram == [2, 2, 0, 0, 1]
    assert both.acceptance.num_accepted_tokens_per_pos == [3, 1, 1, 1]
    assert (both.acceptance.num_forwards, both.acceptance.num_emitted_tokens) == (7, 11)
    assert (both.acceptance.num_drafts, both.acceptance.num_draft_tokens) == (5, 16)
    assert both.acceptance.num_accepted_tokens == 6
    assert (both.num_spec_tokens, both.queue_s, both.generation_s) == (4, 0.3, 2.0)
