"""Comparisons of answers and of the bits that decided them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starspec.harness.compare import (
    compare,
    decision_gap,
    divergence,
    first_difference,
    gap_to,
    is_near_tie,
    near_tie_gap,
    rounding_to_draw,
)
from starspec.harness.decode import Job, JobResult
from starspec.sampling.draw import next_token
from starspec.sampling.spec import SamplingSpec

GREEDY = SamplingSpec(temperature=0.0)
ROW = torch.tensor([0.0, 3.0, 2.5, -1.0], dtype=torch.bfloat16)


def jobs(num: int) -> list[Job]:
    return [Job(f"prompt-{index}", (1, 2), GREEDY, 8) for index in range(num)]


def test_equal_answers_are_identical_and_their_bits_are_compared() -> None:
    answers = [JobResult([1, 2]), JobResult([3])]
    rows = [[ROW, ROW], [ROW]]
    found = [[ROW.clone(), ROW + 0.0], [torch.nextafter(ROW, ROW + 1)]]
    comparison = compare(jobs(2), answers, answers, rows, found)
    assert comparison.is_identical
    assert comparison.exact_match_rate == 1.0
    assert (comparison.num_compared, comparison.num_bitwise, comparison.is_bitwise) == (3, 2, False)


def test_minus_zero_is_not_the_same_bits_as_zero() -> None:
    zero = torch.zeros(4)
    comparison = compare(jobs(1), [JobResult([1])], [JobResult([1])], [[zero]], [[-zero]])
    assert comparison.is_identical
    assert not comparison.is_bitwise


def test_the_first_divergence_has_prompt_position_and_gap() -> None:
    expected, found = [JobResult([1, 1, 1]), JobResult([1, 1])], [JobResult([1, 1, 1]), JobResult([1, 2])]
    comparison = compare(jobs(2), expected, found, [[ROW] * 3, [ROW] * 2])
    assert comparison.first is not None
    assert (comparison.first.prompt, comparison.first.position) == ("prompt-1", 1)
    assert (comparison.first.expected, comparison.first.found) == (1, 2)
    assert comparison.first.logit_gap == 0.5
    assert comparison.num_identical == 1
    assert comparison.num_compared == 4
    assert comparison.num_bitwise is None


@pytest.mark.parametrize(("expected", "found"), [([1, 2], [1]), ([1], [1, 2])])
def test_an_answer_that_ends_elsewhere_diverges_there(expected: list[int], found: list[int]) -> None:
    first = compare(jobs(1), [JobResult(expected)], [JobResult(found)], [[ROW] * len(expected)]).first
    assert first is not None
    assert first.position == 1
    assert None in (first.expected, first.found)
    assert first.logit_gap is None


def test_a_token_without_recorded_logits_counts_as_other_bits() -> None:
    answers = [JobResult([1, 1])]
    assert not compare(jobs(1), answers, answers, [[ROW]], [[ROW, ROW]]).is_bitwise


def test_comparisons_add_up_and_keep_the_earlier_divergence() -> None:
    good = compare(jobs(1), [JobResult([1])], [JobResult([1])], [[ROW]], [[ROW]])
    bad = compare(jobs(1), [JobResult([1])], [JobResult([2])], [[ROW]], [[ROW]])
    both = good.plus(bad)
    assert (both.num_answers, both.num_identical, both.num_tokens) == (2, 1, 2)
    assert (both.num_bitwise, both.num_compared) == (1, 1)
    assert both.first == bad.first
    assert good.plus(compare(jobs(1), [JobResult([1])], [JobResult([1])])).num_bitwise is None


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_the_first_difference_is_the_length_of_the_common_prefix(one: list[int], other: list[int]) -> None:
    at = first_difference(one, other)
    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


def test_the_greedy_gap_is_that_of_the_two_largest_logits() -> None:
    assert decision_gap(ROW, GREEDY, 5) == 0.5


@given(st.integers(0, 1000))
def test_lowering_a_drawn_token_by_its_gap_is_what_changes_the_draw(seed: int) -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    sampling = SamplingSpec(temperature=0.7, seed=seed)
    gap, drawn = decision_gap(logits, sampling, 9), next_token(logits, sampling, 9)
    lower, less_low = logits.clone(), logits.clone()
    lower[drawn] -= gap * 1.001
    less_low[drawn] -= gap * 0.999
    assert next_token(lower, sampling, 9) != drawn
    assert next_token(less_low, sampling, 9) == drawn


def test_a_draw_without_an_alternative_has_an_infinite_gap() -> None:
    assert decision_gap(ROW, SamplingSpec(temperature=1.0, top_k=1), 0) == float("inf")


@pytest.mark.parametrize(("second", "is_tie"), [(16.0, True), (15.875, True), (12.0, False)])
def test_near_ties_are_measured_in_rounding_steps(second: float, is_tie: bool) -> None:
    logits = torch.tensor([16.0, second, 0.0])
    assert is_near_tie(logits.bfloat16(), GREEDY, 0) is is_tie
    assert is_near_tie(logits, GREEDY, 0) is (second == 16.0)


def test_a_wrong_token_is_explained_by_its_own_gap_and_not_by_that_of_another() -> None:
    logits = torch.tensor([10.0, 10.0 - 1e-7, -20.0])
    job = Job("a", (1, 2), GREEDY, 4)

    def is_explained(found: int | None) -> bool | None:
        answer = JobResult([] if found is None else [found])
        return divergence(job, JobResult([0]), answer, 0, logits).is_near_tie

    assert is_explained(1)
    assert not is_explained(2)
    assert not is_explained(None)  # it stopped, where nothing said so


@pytest.mark.parametrize(("expected", "found"), [(2, 0), (0, 2), (2, 1)])
def test_a_difference_is_not_explained_by_one_token_alone(expected: int, found: int) -> None:
    """Logits that are computed anew may prefer the found token; the expected one must be as likely."""
    logits = torch.tensor([10.0, 10.0 - 1e-7, -20.0])
    job = Job("a", (1, 2), GREEDY, 4)
    assert divergence(job, JobResult([expected]), JobResult([found]), 0, logits).is_near_tie is False


def test_a_token_behind_the_references_end_is_not_explained() -> None:
    logits = torch.tensor([10.0, 10.0 - 1e-7, -20.0])
    assert divergence(Job("a", (1, 2), GREEDY, 4), JobResult([0]), JobResult([0, 1]), 1, logits).is_near_tie is False


@pytest.mark.parametrize("seed", range(12))
def test_rounding_may_move_the_edge_of_what_may_be_drawn(seed: int) -> None:
    """Whoever is drawn of two tokens, of one less or of one more is explained, if that one lies at the edge."""
    sampling = SamplingSpec(temperature=1.0, top_k=2, seed=seed)
    edge = torch.tensor([10.0, 9.0, 8.9375, 2.0]).bfloat16()
    for top_k in (1, 2, 3):
        assert could_be_drawn(edge, sampling, next_token(edge, replace(sampling, top_k=top_k), 5))
    assert not could_be_drawn(edge, sampling, 3)
    clear = torch.tensor([10.0, 9.0, 7.0, 2.0]).bfloat16()
    assert could_be_drawn(clear, sampling, next_token(clear, sampling, 5))
    assert not could_be_drawn(clear, sampling, 2)


def could_be_drawn(logits: torch.Tensor, sampling: SamplingSpec, token_id: int) -> bool:
    return rounding_to_draw(logits, sampling, 5, token_id) <= near_tie_gap(logits)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingSpec(temperature=0.7), SamplingSpec(temperature=1.0, top_p=0.9)])
@given(st.integers(0, 1000))
def test_the_drawn_token_needs_no_rounding_and_others_as_much_as_lifts_them_above_it(
    sampling: SamplingSpec, seed: int
) -> None:
    sampling = replace(sampling, seed=seed)
    logits = 3 * torch.randn(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn = next_token(logits, sampling, 5)
    assert rounding_to_draw(logits, sampling, 5, drawn) == 0
    for token_id in {*range(40)} - {drawn}:
        needed = rounding_to_draw(logits, sampling, 5, token_id)
        assert needed > 0 or sampling.has_filters  # the last one of a nucleus is at its edge already
        if not sampling.has_filters:
            lifted = logits.clone()
            lifted[token_id] += 0.999 * needed
            assert next_token(lifted, sampling, 5) == drawn
            lifted[token_id] += 0.002 * needed
            assert next_token(lifted, sampling, 5) == token_id


def test_of_sampled_tokens_it_is_the_noise_that_decides_and_is_told() -> None:
    sampling = SamplingSpec(temperature=1.0, seed=3)
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3))
    drawn, other = next_token(logits, sampling, 2), 7
    logits[other] += gap_to(logits, sampling, 2, other) - 1e-7  # all but drawn
    found = divergence(Job("a", (1, 2), sampling, 4), JobResult([drawn]), JobResult([other]), 0, logits)
    assert found.is_near_tie
    assert found.rounding < 1e-6
    assert abs(found.logit_gap) > 0.1


def test_the_gap_of_a_sampled_token_is_that_of_its_draw() -> None:
    logits = torch.linspace(0.0, 3.0, 40)
    sampling = SamplingSpec(temperature=0.7, top_k=20, seed=11)
    gaps = [gap_to(logits, sampling, 5, token_id) for token_id in range(40)]
    drawn = next_token(logits, sampling, 5, None)
    assert gaps[drawn] == 0.0
    assert sorted(gaps)[1] == pytest.approx(decision_gap(logits, sampling, 5), rel=1e-5)
    assert all(gap == float("inf") for gap in gaps[:20])  # outside of the top 20
