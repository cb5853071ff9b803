import itertools

from hypothesis import given
from hypothesis import strategies as st
from toy import WordTokenizer

from starspec.engine.detokenize import Detokenizer

TOKENIZER = WordTokenizer()


def feed(detokenizer: Detokenizer, token_ids: list[int]) -> tuple[str, str | None]:
    """All text handed out, and the stop string that ended it."""
    text = ""
    for token_id in token_ids:
        match = detokenizer.add(token_id)
        text += detokenizer.take()
        if match:
            return text, match.stop
    match = detokenizer.finish()
    return text + detokenizer.take(), match.stop if match else None


@given(st.lists(st.integers(0, 63), max_size=30))
def test_pieces_join_to_the_whole_text(token_ids: list[int]) -> None:
    text, stop = feed(Detokenizer(TOKENIZER, [1, 2, 3]), token_ids)
    assert text == TOKENIZER.decode(token_ids)
    assert stop is None


def test_an_incomplete_character_is_held_back() -> None:
    detokenizer = Detokenizer(TOKENIZER, [1])
    detokenizer.add(63)
    assert detokenizer.take() == ""
    detokenizer.add(62)
    assert detokenizer.take() == "é"


def test_a_character_that_never_completes_is_handed_out_at_the_end() -> None:
    detokenizer = Detokenizer(TOKENIZER, [1])
    detokenizer.add(63)
    detokenizer.finish()
    assert detokenizer.take() == "\ufffd"


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    detokenizer = Detokenizer(TOKENIZER, [1], stop=("w5 w6",))
    detokenizer.add(5)
    assert detokenizer.take() == ""
    detokenizer.add(7)
    assert detokenizer.take() == "w5 w7 "


def test_a_stop_string_over_two_tokens_cuts_the_text() -> None:
    assert feed(Detokenizer(TOKENIZER, [1], stop=("5 w",)), [4, 5, 6, 7]) == ("w4 w", "5 w")
    assert feed(Detokenizer(TOKENIZER, [1], stop=("5 w",), include_stop=True), [4, 5, 6, 7]) == ("w4 w5 w", "5 w")


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    assert feed(Detokenizer(TOKENIZER, [5, 6], stop=("w5 w6",)), [7, 8]) == ("w7 w8 ", None)


@given(
    ids=st.lists(st.integers(1, 4), max_size=20),
    stops=st.lists(st.sampled_from(["1 w2", "w3 w", "4 w4 w4", "2 ", "w1 w1"]), max_size=3),
    num_unchecked=st.integers(0, 20),
    rounds=st.lists(st.integers(1, 6), min_size=20, max_size=20),
)
def test_however_many_tokens_a_round_brings_the_text_and_the_stop_string_are_the_same(
    ids: list[int], stops: list[str], num_unchecked: int, rounds: list[int]
) -> None:
    """A stop string that was complete before `min_tokens` never counts, whether its text was handed out or not."""

    def answer(sizes: list[int]) -> tuple[str, str | None]:
        detokenizer = Detokenizer(TOKENIZER, [9], stop=tuple(stops))
        text, match, ends = "", None, set(itertools.accumulate(sizes))
        for count, token_id in enumerate(ids, 1):
            match = match or detokenizer.add(token_id, check_stop=count > num_unchecked)
            if match:
                break
            if count in ends:
                text += detokenizer.take()
        match = match or detokenizer.finish()
        return text + detokenizer.take(), match.stop if match else None

    assert answer(rounds) == answer([1] * len(ids))


@given(
    st.lists(st.integers(1, 4), max_size=25), st.lists(st.sampled_from(["1 w2", "w3 w", "4 w4 w4", "2 "]), max_size=3)
)
def test_streamed_text_ends_where_the_earliest_completed_stop_string_begins(ids: list[int], stops: list[str]) -> None:
    text, stop = feed(Detokenizer(TOKENIZER, [9], stop=tuple(stops)), ids)
    for num in range(1, len(ids) + 1):
        so_far = TOKENIZER.decode(ids[:num])
        found = [so_far.find(each) for each in stops if each in so_far]
        if found:
            assert text == so_far[: min(found)]
            assert stop in stops
            return
    assert text == TOKENIZER.decode(ids)
