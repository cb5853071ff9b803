from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spec_strategies import tensors

from starspec.sampling.logprobs import top_logprobs


def test_logprobs_are_the_models_own():
    logits = torch.tensor([math.log(0.2), math.log(0.5), math.log(0.3)]) + 7
    logprob, top = top_logprobs(logits, 2, 2)
    assert logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert [token_id for token_id, _ in top] == [1, 2]
    assert [math.exp(each) for _, each in top] == pytest.approx([0.5, 0.3], abs=1e-6)


def test_equals_are_listed_lowest_id_first():
    assert [token_id for token_id, _ in top_logprobs(torch.tensor([1.0, 2, 1, 1, 2]), 0, 4).top] == [1, 4, 0, 2]


def test_none_asked_for_none_given():
    assert top_logprobs(torch.zeros(4), 3, 0) == (pytest.approx(-math.log(4)), [])


@given(data=st.data(), num_top=st.integers(0, 12), vocab_size=st.integers(1, 9))
def test_top_is_sorted_normalised_and_agrees_with_the_tokens_own(data, num_top, vocab_size):
    (row,) = data.draw(tensors(1, vocab_size))
    everything = top_logprobs(row, 0, vocab_size).top
    top = top_logprobs(row, 0, num_top).top
    assert top == everything[:num_top]
    assert everything == sorted(everything, key=lambda pair: (-float(row[pair[0]]), pair[0]))
    assert sum(math.exp(logprob) for _, logprob in everything) == pytest.approx(1.0)
    for token_id, logprob in everything:
        assert top_logprobs(row, token_id, 0).logprob == logprob
