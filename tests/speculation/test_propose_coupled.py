"""The draft's predictions against the float64 reference, and properties that hold for all inputs."""

from __future__ import annotations

from math import exp, fsum, inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_strategies import positions, samplings, tensors

from starspec.sampling import reference as draw_reference
from starspec.sampling.counts import TokenCounts
from starspec.sampling.draw import next_token
from starspec.sampling.noise import gumbel, stream_key
from starspec.sampling.spec import SamplingSpec
from starspec.speculation import reference
from starspec.speculation.propose_coupled import propose_token, propose_tokens


@given(data=st.data(), vocab_size=st.integers(1, 9), num_rows=st.integers(1, 3), num_tokens=st.integers(1, 10))
@settings(max_examples=400)
def test_guesses_are_the_references_whatever_other_rows_say(data, vocab_size, num_rows, num_tokens):
    token_ids = st.lists(st.integers(0, vocab_size - 1), max_size=4)
    logits, sampling = data.draw(tensors(num_rows, vocab_size)), data.draw(samplings(vocab_size))
    prompt, length = data.draw(token_ids), data.draw(st.integers(0, 3))
    outputs = [data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=length, max_size=length)) for _ in logits]
    counts = [TokenCounts(prompt, output) for output in outputs]
    ours = propose_tokens(logits, sampling, len(prompt) + length, counts, num_tokens=num_tokens, num_candidates=12)
    for row, output, guesses in zip(logits, outputs, ours, strict=True):
        expected = reference.propose_tokens(row.tolist(), sampling, prompt, output, num_tokens, 12)
        assert [token_id for token_id, _ in guesses] == [token_id for token_id, _ in expected]
        assert [exp(each) for _, each in guesses] == pytest.approx([each for _, each in expected], abs=2e-6)


@given(data=st.data(), vocab_size=st.integers(1, 9))
def test_a_guess_among_all_tokens_is_the_draw(data, vocab_size):
    (row,) = data.draw(tensors(1, vocab_size))
    sampling, position = data.draw(samplings(vocab_size)), data.draw(st.integers(3, 50))
    counts = TokenCounts([0, 0, 0], [0] * (position - 3))
    assert propose_token(row, sampling, position, counts) == next_token(row, sampling, position, counts)


def test_a_guess_is_nearly_always_the_draw_when_the_logits_are_the_targets():
    row = torch.randn(5000, generator=torch.Generator().manual_seed(5000)) * 3
    row[2500] += 30
    sampling = SamplingSpec(temperature=1.0, top_p=0.9, seed=8)
    row[:20] += 6
    same = [propose_token(row, sampling, position) == next_token(row, sampling, position) for position in range(50)]
    assert sum(same) >= 45


@given(data=st.data(), num_candidates=st.integers(1, 4))
def test_a_guess_is_the_draw_among_the_likeliest_tokens(data, num_candidates):
    values = torch.tensor(data.draw(st.lists(st.integers(-9, 9), min_size=4, max_size=9, unique=True))).float()
    sampling = data.draw(
        samplings(len(values)).map(
            lambda sampling: SamplingSpec(temperature=0.9, top_p=sampling.top_p, seed=sampling.seed)
        )
    )
    others = values.argsort(descending=True)[num_candidates:]
    masked = values.index_fill(0, others, -inf)
    assert propose_token(values, sampling, 6, num_candidates=num_candidates) == next_token(masked, sampling, 6)


@given(data=st.data(), vocab_size=st.integers(1, 12), num_tokens=st.integers(1, 14))
@settings(max_examples=300)
def test_the_first_of_several_guesses_is_the_guess_and_their_order_is_that_of_the_perturbed_logits(
    data, vocab_size, num_tokens
):
    (row,) = data.draw(tensors(1, vocab_size))
    sampling, position = data.draw(samplings(vocab_size)), data.draw(positions)
    counts = TokenCounts([0], [0])
    (guesses,) = propose_tokens(row[None], sampling, position, [counts], num_tokens=num_tokens)
    token_ids = [token_id for token_id, _ in guesses]
    confidences = [exp(log_confidence) for _, log_confidence in guesses]
    assert token_ids[0] == propose_token(row, sampling, position, counts)
    assert 1 <= len(set(token_ids)) == len(token_ids) <= num_tokens
    assert confidences == sorted(confidences, reverse=True)
    assert fsum(confidences) <= 1 + 1e-9


def test_without_temperature_confidence_is_the_softmax_of_the_logits():
    row = torch.tensor([0.5, 2.0, 1.0, -1.0])
    (guesses,) = propose_tokens(row[None], SamplingSpec(temperature=0.0), 3, [None], num_tokens=2)
    assert [token_id for token_id, _ in guesses] == [1, 2]
    assert [exp(each) for _, each in guesses] == pytest.approx(row.softmax(0)[[1, 2]].tolist())


def test_confidence_is_how_often_a_target_whose_logits_differ_by_gumbel_noise_says_the_token():
    sampling = SamplingSpec(temperature=0.7, seed=11)
    row = torch.tensor([1.0, 1.5, 0.2, -0.3], dtype=torch.float64)
    guesses = dict(propose_tokens(row[None], sampling, 5, [None], num_tokens=4)[0])
    rate = torch.distributions.Gumbel(torch.zeros(100_000, 4, dtype=torch.float64), 1.0)
    torch.manual_seed(0)
    perturbed = row + rate.sample() + sampling.temperature * gumbel(stream_key(sampling.seed, 5), torch.arange(4))
    shares = perturbed.argmax(1).bincount(minlength=4) / 100_000
    for token_id, log_confidence in guesses.items():
        assert exp(log_confidence) == pytest.approx(float(shares[token_id]), abs=0.006)  # 4 standard errors


def test_what_the_filters_exclude_at_the_draft_is_guessed_after_what_it_lets_pass():
    row = torch.tensor([2.0, 2.1, -3.0, 1.9])
    for sampling in (SamplingSpec(temperature=1.0, top_p=0.3, seed=5), SamplingSpec(temperature=1.0, top_k=1, seed=5)):
        (guesses,) = propose_tokens(row[None], sampling, 5, [None], num_tokens=3)
        assert guesses[0][0] == propose_token(row, sampling, 5)
        assert len(guesses) == 3


@pytest.mark.parametrize("temperature", [0.0, 0.001, 1.0])
def test_where_nothing_may_be_said_the_first_token_is_the_guess(temperature):
    sampling = SamplingSpec(temperature=temperature, min_tokens=1, end_token_ids=(2,))
    row = torch.tensor([-inf, -inf, 0.0])
    assert propose_tokens(row[None], sampling, 0, [TokenCounts([], [])], num_tokens=2) == [[(0, 0.0)]]
    assert reference.propose_tokens(row.tolist(), sampling, [], [], 2, 12) == [(0, 1.0)]
    assert (
        next_token(row, sampling, 0, TokenCounts([], []))
        == draw_reference.next_token(row.tolist(), sampling, [], [])
        == 0
    )


def test_rows_and_distributions_without_probabilities_give_one_guess():
    broken = torch.tensor([[nan, 1.0], [0.0, inf], [0.0, 1.0]])
    for temperature in (0.0, 1.0):
        first, second, third = propose_tokens(
            broken, SamplingSpec(temperature=temperature), 0, [None] * 3, num_tokens=8
        )
        assert (first, second, len(third)) == ([(0, 0.0)], [(1, 0.0)], 2)
    assert (
        len(propose_tokens(torch.randn(1, 50), SamplingSpec(temperature=1e308, seed=1), 0, [None], num_tokens=8)[0])
        == 1
    )
