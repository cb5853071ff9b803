"""Token counts against collections.Counter."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.sampling.counts import TokenCounts
from starspec.sampling.spec import MAX_BAD_WORD_LEN

token_lists = st.lists(st.integers(0, 5), max_size=12)


def as_dict(counts: TokenCounts) -> dict[int, float]:
    token_ids, num_output = counts.seen()
    assert len(set(token_ids.tolist())) == len(token_ids)
    return dict(zip(token_ids.tolist(), num_output.tolist(), strict=True))


def expected(prompt: list[int], output: list[int]) -> dict[int, float]:
    return {token: float(Counter(output)[token]) for token in {*prompt, *output}}


@given(prompt=token_lists, output=token_lists, appended=token_lists, path=token_lists, further=token_lists)
def test_seen_tokens_are_those_of_prompt_output_and_path(prompt, output, appended, path, further):
    counts = TokenCounts(prompt, output)
    counts.append(appended)
    overlay = counts.with_path(path).with_path(further)
    assert counts.prompt_len == overlay.prompt_len == len(prompt)
    assert as_dict(counts) == expected(prompt, output + appended)
    assert as_dict(overlay) == expected(prompt, output + appended + path + further)
    assert overlay.last_output == (*output, *appended, *path, *further)


def test_as_many_last_output_tokens_are_kept_as_a_bad_word_can_have_in_front():
    counts = TokenCounts([1, 2], range(100))
    assert counts.with_path([100]).last_output == tuple(range(100 - (MAX_BAD_WORD_LEN - 1), 101))


@given(prompt=token_lists, path=token_lists, committed=token_lists)
def test_an_overlay_changes_nothing_below_it(prompt, path, committed):
    counts = TokenCounts(prompt)
    counts.with_path(path).seen().num_output.add_(1)
    counts.append(committed)
    assert as_dict(counts) == expected(prompt, committed)


def test_tokens_are_not_committed_to_an_overlay():
    with pytest.raises(AssertionError, match="not committed"):
        TokenCounts([1]).with_path([2]).append([3])
