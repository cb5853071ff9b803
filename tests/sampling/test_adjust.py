"""Adjusted logits: vLLM's definitions, by hand and against the reference."""

from __future__ import annotations

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spec_strategies import samplings, tensors

from starspec.sampling import adjust as adjust_module
from starspec.sampling import reference
from starspec.sampling.adjust import adjust
from starspec.sampling.counts import TokenCounts
from starspec.sampling.spec import SamplingSpec

LOGITS = torch.tensor([2.0, -2.0, 1.0, 0.0])


def adjusted(prompt: list[int], output: list[int], **sampling) -> list[float]:
    counts = TokenCounts(prompt, output)
    return adjust(LOGITS, SamplingSpec(**sampling), len(prompt) + len(output), counts).tolist()


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output():
    assert adjusted([0], [1, 1], repetition_penalty=2.0) == [1.0, -4.0, 1.0, 0.0]


def test_presence_counts_once_and_frequency_each_time_over_the_output_only():
    assert adjusted([0], [1, 1, 2], presence_penalty=0.5) == [2.0, -2.5, 0.5, 0.0]
    assert adjusted([0], [1, 1, 2], frequency_penalty=0.5) == [2.0, -3.0, 0.5, 0.0]


def test_bias_is_added_before_penalties_see_the_logits_sign():
    assert adjusted([0], [], repetition_penalty=2.0, logit_bias={0: -3.0, 3: 1.0}) == [-2.0, -2.0, 1.0, 1.0]


@pytest.mark.parametrize(("num_output", "first"), [(0, -inf), (1, -inf), (2, 2.0), (3, 2.0)])
def test_end_tokens_cannot_be_drawn_before_min_tokens(num_output, first):
    sampling = {"min_tokens": 2, "end_token_ids": (0, 0)}
    assert adjusted([1, 1, 1], [3] * num_output, **sampling) == [first, -2.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("output", "excluded"),
    [([], {3}), ([1], {2, 3}), ([2], {3}), ([1, 2], {3}), ([0, 0, 1], {0, 2, 3}), ([1, 0, 1], {2, 3})],
)
def test_a_bad_word_ends_nowhere_in_the_output(output, excluded):
    given = adjusted([1, 0, 0, 1], output, bad_words=((3,), (1, 2), (0, 0, 1, 0)), logit_bias={3: 100.0})
    assert {token_id for token_id, logit in enumerate(given) if logit == -inf} == excluded


def test_thousands_of_bad_words_are_looked_up_not_gone_through():
    class Counted(int):
        num_compared = 0

        def __eq__(self, other):
            Counted.num_compared += 1
            return int(self) == int(other)

        __hash__ = int.__hash__

    front = (7,) * 62
    words = tuple((Counted(each), *front, each) for each in range(2048))
    sampling = SamplingSpec(bad_words=words)
    sampling.ends_of_bad_words(())  # makes the table
    Counted.num_compared = 0
    assert sampling.ends_of_bad_words((5, *front)) == [5]
    assert Counted.num_compared < 20


def test_long_lists_become_tensors_once_a_request_and_not_at_each_position():
    sampling = SamplingSpec(
        logit_bias=dict.fromkeys(range(3, 900), 1.5), min_tokens=9, end_token_ids=tuple(range(1, 1900))
    )
    adjust_module._bias_tensors.cache_clear()
    adjust_module._end_tensor.cache_clear()
    for _ in range(5):
        assert adjust(LOGITS, sampling, 1, TokenCounts([0])).tolist() == [2.0, -inf, -inf, -inf]
    assert adjust_module._bias_tensors.cache_info().misses == adjust_module._end_tensor.cache_info().misses == 1


def test_token_ids_outside_the_vocabulary_do_nothing():
    sampling = {"min_tokens": 9, "end_token_ids": (-1, 4), "bad_words": ((-1,), (4,)), "logit_bias": {-1: 5.0, 4: 5.0}}
    assert (
        adjusted([-2, 5], [-1, 4, 10**9], **sampling, repetition_penalty=3.0, presence_penalty=1.0) == LOGITS.tolist()
    )


def test_a_grammar_excludes_what_it_does_not_allow_whatever_the_bias():
    allowed = torch.tensor([False, True, True, False])
    sampling = SamplingSpec(logit_bias={0: 100.0}, presence_penalty=-2.0)
    given = adjust(LOGITS, sampling, 2, TokenCounts([0], [0]), allowed)
    assert given.tolist() == [-inf, -2.0, 1.0, -inf]


@pytest.mark.parametrize(("others", "end"), [(True, -inf), (False, 2.0)])
def test_min_tokens_hold_the_end_back_only_where_the_grammar_allows_something_else(others, end):
    allowed = torch.tensor([True, others, False, False])
    sampling = SamplingSpec(min_tokens=2, end_token_ids=(0,))
    assert adjust(LOGITS, sampling, 1, TokenCounts([1]), allowed)[0] == end


@given(data=st.data(), vocab_size=st.integers(1, 6))
def test_adjusted_logits_are_the_references(data, vocab_size):
    token_ids = st.lists(st.integers(0, vocab_size - 1), max_size=5)
    (row,) = data.draw(tensors(1, vocab_size))
    sampling, prompt, output = data.draw(samplings(vocab_size)), data.draw(token_ids), data.draw(token_ids)
    allowed = data.draw(st.none() | st.sets(st.integers(0, vocab_size - 1), min_size=1))
    mask = None if allowed is None else torch.tensor([each in allowed for each in range(vocab_size)])
    before = row.clone()
    ours = adjust(row, sampling, len(prompt) + len(output), TokenCounts(prompt, output), mask)
    assert ours.tolist() == reference.adjust(row.tolist(), sampling, prompt, output, allowed)
    assert row.equal(before)


@pytest.mark.parametrize(
    "sampling", [SamplingSpec(min_tokens=1), SamplingSpec(presence_penalty=1.0), SamplingSpec(bad_words=((1,),))]
)
def test_sampling_parameters_that_need_counts_say_so(sampling):
    with pytest.raises(ValueError, match="pass the counts"):
        adjust(LOGITS, sampling, 3, None)
