import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from toy import WordTokenizer
from transformers import PreTrainedTokenizerFast

from starspec.engine.detokenize import MAX_PENDING, UNFINISHED, Decodes, Detokenizer
from starspec.engine.sequence import TargetSequence
from starspec.ids import LOCAL, RequestId, RequestKey
from starspec.sampling.spec import SamplingSpec
from starspec.wire.messages import RequestSpec, TokenLogprob

TOKENIZER = WordTokenizer()


def byte_level() -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are bytes; the tokens behind them cut characters in every way, as learned merges do."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable}
    spelling |= {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    parts = [" 日".encode()[:-1], " 🚀".encode()[:2], "🚀".encode()[2:], "日".encode()[1:] + b"a", "‍👩".encode()[:-1]]
    pieces = [bytes([byte]) for byte in range(256)] + parts + [" 한".encode(), b" go"]
    vocab = {"".join(spelling[byte] for byte in piece): token_id for token_id, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are bytes, as in SentencePiece: one incomplete character spoils the whole run of byte tokens."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581go": 256, "a": 257}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


TOKENIZERS = {"byte level": byte_level(), "byte fallback": byte_fallback()}
every_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)
# characters of one to four bytes, and emoji that are joined to one
TEXTS = st.lists(
    st.sampled_from(["a", " ", "é", "日", "한", "🚀", "👨", "\u200d", "👩", "👨‍👩‍👧", "\u0301"]), max_size=14
)


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


class Halves:
    """Every token is half of a surrogate pair: a file of a tokenizer may say so."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(0xD800 + token_id) for token_id in token_ids)


def test_the_text_of_any_token_can_be_sent() -> None:
    text, _ = feed(Detokenizer(Halves(), [1, 2]), [3, 4, 5])
    assert text == "???"


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


def test_a_token_costs_no_more_the_longer_the_text_is_that_is_held_back() -> None:
    """Eight times the tokens take eight times the time; searching all of the text each time would take 64 times."""
    stops = ("w1 " * 3000 + "x", *("w1 " * 100 + f"{number}x" for number in range(15)))

    def seconds(num_tokens: int) -> float:
        taken = []
        for _ in range(3):
            detokenizer, started_s = Detokenizer(TOKENIZER, [9], stop=stops), time.thread_time()
            for _ in range(num_tokens):
                assert detokenizer.add(1) is None
            taken.append(time.thread_time() - started_s)
        return min(taken)

    assert seconds(2400) < 24 * seconds(300)


@every_tokenizer
@pytest.mark.parametrize("char", [" 日", " 🚀", " 한", "👨‍👩‍👧", "日本", "é"])
def test_a_character_that_the_prompt_begins_is_in_the_answer_whole(name: str, char: str) -> None:
    ids = list(f"Go on:{char}".encode())
    assert feed(Detokenizer(TOKENIZERS[name], ids[:-1]), [ids[-1], ord("!")]) == (char[-1] + "!", None)
    assert feed(Detokenizer(TOKENIZERS[name], ids[:-1], stop=(char[-1],)), [ids[-1], ord("!")]) == ("", char[-1])


@every_tokenizer
@given(chars=TEXTS, data=st.data())
def test_text_and_offsets_are_right_wherever_the_prompt_ends(name: str, chars: list[str], data: st.DataObject) -> None:
    """Against plain decoding of the bytes: a character belongs to the answer if its last byte does."""
    content = "".join(["x", *chars]).encode()
    num_prompt = data.draw(st.integers(1, len(content)))
    detokenizer = Detokenizer(TOKENIZERS[name], list(content[:num_prompt]))
    num_chars_of_prompt = len(content[:num_prompt].decode(errors="ignore"))
    text = ""
    for end, byte in enumerate(content[num_prompt:], num_prompt + 1):
        before = content[: end - 1].decode(errors="ignore")
        assert detokenizer.next_offset == len(before) - num_chars_of_prompt
        assert detokenizer.add(byte) is None
        text += detokenizer.take()
        assert text == content[:end].decode(errors="ignore")[num_chars_of_prompt:]
    detokenizer.finish()
    assert text + detokenizer.take() == content.decode()[num_chars_of_prompt:]


@given(
    ids=st.lists(st.sampled_from([*range(0x60, 0x63), *range(256, 263), 0xE6, 0x97, 0xA5, 0xF0]), max_size=14),
    data=st.data(),
)
def test_tokens_that_cut_characters_anyhow_give_what_decoding_all_at_once_gives(
    ids: list[int], data: st.DataObject
) -> None:
    """Broken characters included: U+FFFD of the prompt is the answer's where the answer completes it."""
    tokenizer, num_prompt = TOKENIZERS["byte level"], data.draw(st.integers(0, len(ids)))
    before, both = tokenizer.decode(ids[:num_prompt]), tokenizer.decode(ids)
    detokenizer = Detokenizer(tokenizer, ids[:num_prompt])
    text, _ = feed(detokenizer, ids[num_prompt:])
    num_equal = max(num for num in range(len(before) + 1) if both.startswith(before[:num]))
    assert text == both[num_equal:]


@every_tokenizer
@given(
    ids=st.lists(st.integers(0, 257), max_size=12), data=st.data(), stops=st.lists(st.sampled_from(["a", " go", "日"]))
)
def test_offsets_rise_within_the_text_whatever_the_tokens_are(
    name: str, ids: list[int], data: st.DataObject, stops: list[str]
) -> None:
    num_prompt = data.draw(st.integers(0, len(ids)))
    detokenizer = Detokenizer(TOKENIZERS[name], ids[:num_prompt], stop=tuple(stops))
    offsets = []
    for token_id in ids[num_prompt:]:
        offsets.append(detokenizer.next_offset)
        if detokenizer.add(token_id):
            break
    detokenizer.finish()
    assert offsets == sorted(offsets)
    assert detokenizer.next_offset <= len(detokenizer.text)


def test_log_probabilities_have_the_offset_of_the_character_that_their_token_continues() -> None:
    detokenizer, spec = Detokenizer(TOKENIZERS["byte level"], [0x61]), RequestSpec([0x61], SamplingSpec(), max_tokens=9)
    sequence = TargetSequence(
        RequestKey(LOCAL, RequestId("a")),
        spec,
        max_len=10,
        eos_token_ids=(),
        detokenizer=detokenizer,
        arrived_s=0.0,
    )
    token_ids = (256, 0xA5, 0x62)  # a space and two bytes of a character, its last byte, a letter
    added = sequence.extend(token_ids, [TokenLogprob(token_id, -0.5, []) for token_id in token_ids])
    assert detokenizer.text == " 日b"
    assert [each.text_offset for each in added.logprobs] == [0, 1, 2]


@pytest.mark.parametrize(("name", "letter"), [("byte level", ord("a")), ("byte fallback", 257)])
def test_a_broken_character_of_the_prompt_stays_in_the_prompt(name: str, letter: int) -> None:
    ids = [letter, 0xE6, letter]
    assert feed(Detokenizer(TOKENIZERS[name], ids), [*"日x".encode()]) == ("日x", None)
    assert feed(Detokenizer(TOKENIZERS[name], ids), [0xE6]) == (UNFINISHED, None)
    assert feed(Detokenizer(TOKENIZERS[name], ids[:2]), [letter]) == ("a", None)


class Counting:
    """Notes the longest run of tokens that it was asked to decode."""

    def __init__(self, tokenizer: Decodes) -> None:
        self._tokenizer = tokenizer
        self.longest = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        self.longest = max(self.longest, len(token_ids))
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize(
    ("tokenizer", "token_id", "then", "told"),
    [
        (TOKENIZERS["byte level"], 0x80, 0x61, UNFINISHED),  # never part of a character
        (TOKENIZERS["byte level"], 0xE6, 0x61, UNFINISHED),  # always the beginning of one
        (TOKENIZERS["byte fallback"], 0x80, 257, UNFINISHED),
        (TOKENIZER, 63, 5, UNFINISHED),
        (TOKENIZER, 0, 5, ""),  # a special token
    ],
)
def test_tokens_that_never_become_text_are_not_decoded_again_and_again(
    tokenizer: Decodes, token_id: int, then: int, told: str
) -> None:
    counting, num = Counting(tokenizer), 20 * MAX_PENDING
    text, _ = feed(Detokenizer(counting, [token_id]), [token_id] * num + [then])
    assert text == told * num + tokenizer.decode([then], skip_special_tokens=True)
    assert counting.longest < 3 * MAX_PENDING


@pytest.mark.parametrize(("name", "letter"), [("byte level", ord("a")), ("byte fallback", 257)])
@given(num=st.integers(MAX_PENDING - 4, MAX_PENDING + 4), char=st.sampled_from(["é", "日", "🚀"]))
def test_a_character_behind_very_many_broken_ones_is_whole(name: str, letter: int, num: int, char: str) -> None:
    ids = [letter, *[0x80] * num, letter, *char.encode()]
    assert feed(Detokenizer(TOKENIZERS[name], [letter]), ids) == (f"a{UNFINISHED * num}a{char}", None)


def test_skipped_tokens_between_words_change_nothing_however_many_they_are() -> None:
    text, _ = feed(Detokenizer(TOKENIZER, [1]), [5, *[0] * 1000, 63, 0, 62, *[0] * 1000, 6])
    assert text == "w5 éw6 "
