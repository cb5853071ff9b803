"""Where an answer stands in the text that was predicted for it."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starspec.speculation.prediction import NEAR, PredictedText

TEXT = [10, 11, 12, 5, 13, 14, 5, 15, 16, 5, 17, 18]  # 5 stands between its parts


def proposed(*answer: int, text: list[int] = TEXT, num_tokens: int = 3) -> list[int]:
    predicted = PredictedText(text)
    predicted.append(answer)
    return predicted.propose(num_tokens)


def test_the_answer_is_expected_to_begin_with_the_text_and_to_follow_it():
    assert proposed() == [10, 11, 12]
    assert proposed(10, 11) == [12, 5, 13]
    assert proposed(*TEXT[:-1]) == [18]
    assert proposed(*TEXT) == []


def test_it_can_be_asked_what_follows_behind_tokens_that_are_sure():
    predicted = PredictedText(TEXT)
    assert predicted.propose(3, [10, 11]) == [12, 5, 13]
    assert predicted.propose(3, [10, 12]) == predicted.propose(3, TEXT) == []
    assert predicted.propose(3) == [10, 11, 12]


@pytest.mark.parametrize(
    ("answer", "follows"),
    [
        ((10, 11, 99), []),  # has left the text ...
        ((10, 11, 99, 5), [13, 14, 5]),  # ... where a token was replaced
        ((10, 11, 99, 98, 12), [5, 13, 14]),  # ... where two were inserted
        ((10, 14), [5, 15, 16]),  # ... where some were left out
        ((7, 8, 10), [11, 12, 5]),  # it begins before the text
    ],
)
def test_behind_a_change_the_answer_comes_back_to_the_next_place_that_fits(answer, follows):
    assert proposed(*answer) == follows


def test_a_guess_that_was_wrong_does_not_lead_further_ahead():
    # 5 alone could be each of three places; only a token that comes as expected shows where the answer is
    assert proposed(10, 99, 5, 98, 5, 97, 5) == [13, 14, 5]


def test_a_longer_run_of_tokens_decides_even_if_it_stands_before():
    text = [1, 2, 3, 4, *range(100, 140), 3, 9]
    assert proposed(*text[:30], 1, 2, 3, text=text) == [4, 100, 101]


def test_one_token_alone_shows_no_place_that_is_far_ahead():
    text = [1, *range(100, 100 + NEAR), 2, 3]
    assert proposed(50, 2, text=text) == []
    assert proposed(50, 100 + NEAR - 1, 2, text=text) == [3]


def test_an_empty_text_predicts_nothing():
    assert proposed(1, 2, text=[]) == []


@given(text=st.lists(st.integers(0, 3)), answer=st.lists(st.integers(0, 3)), num_tokens=st.integers(1, 5))
def test_what_is_proposed_is_a_part_of_the_text(text, answer, num_tokens):
    follows = proposed(*answer, text=text, num_tokens=num_tokens)
    assert len(follows) <= num_tokens
    assert any(text[start : start + len(follows)] == follows for start in range(len(text) + 1))


def places(text: list[int], run: list[int]) -> list[int]:
    """Indices behind each place of the run."""
    return [end for end in range(len(run), len(text) + 1) if text[end - len(run) : end] == run]


def comes_back_to(text: list[int], last: list[int], followed_to: int) -> int | None:
    """The rule in the plainest words."""
    for size in range(min(4, len(last)), 0, -1):
        if found := places(text, last[-size:]):
            ahead = [each for each in found if each > followed_to]
            place = ahead[0] if ahead else found[-1]
            return place if size > 1 or 0 < place - followed_to <= NEAR else None
    return None


@given(
    text=st.lists(st.sampled_from([0, 1, 0x80, 0xD800, 0x10000]), max_size=40),
    answer=st.lists(st.sampled_from([0, 1, 0x80, 0xD800, 0x10000]), max_size=20),
)
def test_the_answer_comes_back_to_the_next_place_of_the_longest_run(text: list[int], answer: list[int]) -> None:
    predicted, following, followed_to = PredictedText(text), 0, 0
    for num, token_id in enumerate(answer, 1):
        predicted.append([token_id])
        if following is not None and text[following : following + 1] == [token_id]:
            following = followed_to = following + 1
        else:
            following = comes_back_to(text, answer[:num], followed_to)
        assert predicted.propose(3) == ([] if following is None else text[following : following + 3])


def test_a_prediction_as_long_as_a_context_takes_little_memory_and_so_no_time_to_index():
    text = list(range(20_000))
    tracemalloc.start()
    predicted = PredictedText(text)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes < 16 * len(text)
    assert predicted.propose(2) == [0, 1]
