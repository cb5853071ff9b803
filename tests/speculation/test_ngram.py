"""Prompt lookup against a search that anyone can read."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.speculation.ngram import NgramIndex, PromptLookup


def search(token_ids: list[int], min_ngram: int, max_ngram: int, num_tokens: int) -> list[int]:
    for size in range(min(max_ngram, len(token_ids)), min_ngram - 1, -1):
        for start in range(len(token_ids) - size - 1, -1, -1):
            if token_ids[start : start + size] == token_ids[-size:]:
                text = list(token_ids)
                for index in range(start + size, start + size + num_tokens):
                    text.append(text[index])
                return text[len(token_ids) :]
    return []


@given(
    token_ids=st.lists(st.integers(0, 2), max_size=30),
    sizes=st.tuples(st.integers(1, 3), st.integers(3, 9)),
    num_tokens=st.integers(0, 6),
    split=st.integers(0, 30),
)
def test_proposal_is_what_a_search_finds(token_ids, sizes, num_tokens, split):
    index = NgramIndex(*sizes, token_ids[:split])
    index.append(token_ids[split:])
    assert len(index) == len(token_ids)
    assert index.propose(num_tokens) == search(token_ids, *sizes, num_tokens)


def test_longest_match_wins_over_a_more_recent_one():
    assert NgramIndex(1, 2, [1, 2, 7, 5, 2, 8, 1, 2]).propose(1) == [7]


def test_most_recent_of_equally_long_matches_wins():
    assert NgramIndex(2, 2, [1, 2, 7, 1, 2, 8, 1, 2]).propose(2) == [8, 1]


def test_a_repeating_text_is_continued_as_far_as_asked():
    assert NgramIndex(2, 3, [1, 2, 1, 2, 1]).propose(5) == [2, 1, 2, 1, 2]


def test_nothing_is_proposed_for_unseen_text():
    assert NgramIndex(2, 4, [1, 2, 3, 1]).propose(4) == []


def test_proposing_takes_no_longer_on_a_long_sequence():
    index = NgramIndex(2, 4, [0] * 200_000 + [1, 2, 3])
    start = time.perf_counter()
    for _ in range(1000):
        index.propose(4)
    assert time.perf_counter() - start < 1.0  # a scan would need minutes


@pytest.mark.parametrize("sizes", [(0, 2), (3, 2)])
def test_sizes_must_make_sense(sizes):
    with pytest.raises(ValueError, match="min_ngram"):
        NgramIndex(*sizes)


def test_runs_longer_than_the_sequence_match_nothing():
    assert NgramIndex(1, 9, [1, 2, 7, 1, 5, 2, 1, 2]).propose(1) == [7]


@given(
    parts=st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 2), max_size=9)), max_size=9),
    gone=st.sampled_from("abc"),
)
def test_each_sequence_is_looked_up_by_itself(parts, gone):
    lookup, texts = PromptLookup[str](1, 3), dict[str, list[int]]()
    for key, token_ids in parts:
        lookup.append(key, token_ids)
        texts.setdefault(key, []).extend(token_ids)
    assert lookup.lengths == {key: len(text) for key, text in texts.items()}
    for key in "abc":
        text = texts.get(key, [])
        assert lookup.num_indexed(key) == len(text)
        assert lookup.propose(key, 4) == search(text, 1, 3, 4)
    lookup.forget(gone)
    lookup.forget(gone)
    assert lookup.lengths.keys() == texts.keys() - {gone}
