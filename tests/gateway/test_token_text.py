"""Single tokens spelled out: no byte is lost, whatever the kind of vocabulary."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from starspec.engine.detokenize import Detokenizer
from starspec.gateway.token_text import BYTE_OF, TokenText, completion_logprobs
from starspec.wire.messages import TokenLogprob


def test_the_byte_alphabet_is_that_of_byte_level_vocabularies() -> None:
    assert sorted(BYTE_OF) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_OF.values()) == list(range(256))


@given(text=st.text(max_size=20))
def test_the_bytes_of_the_tokens_join_to_the_text(tokenizer: Any, text: str) -> None:
    tokens = TokenText(tokenizer)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    if not any(token_id >= 256 for token_id in token_ids):  # <s> spelled in the text is one token
        assert b"".join(tokens.bytes_of(token_id) for token_id in token_ids) == text.encode()


def test_special_tokens_are_verbatim_and_padding_rows_are_empty(tokenizer: Any) -> None:
    tokens = TokenText(tokenizer)
    assert tokens.text_of(257) == "</s>"
    assert tokens.bytes_of(300) == b""


def test_pieces_with_byte_fallback_keep_their_space_and_their_bytes() -> None:
    vocab = {"\u2581the": 0, "<0xE2>": 1, "é": 2}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokens = TokenText(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert [tokens.text_of(token_id) for token_id in range(3)] == [" the", r"bytes:\xe2", "é"]


def answer_of(tokenizer: Any, token_ids: list[int]) -> tuple[str, list[int]]:
    """The text of an answer and the offsets of its tokens, as target and gateway make them."""
    detokenizer, entries = Detokenizer(tokenizer, [tokenizer.convert_tokens_to_ids("x")]), []
    for token_id in token_ids:
        entries.append(TokenLogprob(token_id, -0.5, [], detokenizer.next_offset))
        detokenizer.add(token_id)
    detokenizer.finish()
    return detokenizer.text, completion_logprobs(entries, TokenText(tokenizer), detokenizer.text).text_offset


BYTES = st.sampled_from([*b"ab", *"é日🚀".encode(), 0xFF, 0xE6])


@given(content=st.lists(BYTES, max_size=12))
def test_the_offset_of_a_token_is_the_character_of_its_first_byte(tokenizer: Any, content: list[int]) -> None:
    """Broken characters included: each is one U+FFFD in the text."""
    char_of = {byte: char for char, byte in BYTE_OF.items()}
    text, offsets = answer_of(tokenizer, [tokenizer.convert_tokens_to_ids(char_of[byte]) for byte in content])
    so_far = [bytes(content[: end + 1]).decode(errors="replace") for end in range(len(content))]
    assert text == (so_far[-1] if so_far else "")
    assert offsets == [len(each) - 1 for each in so_far]


def test_a_token_behind_a_broken_character_of_another_token_begins_behind_it() -> None:
    pieces = ["x", "a\u0122", "b", "\u0122"]  # so byte-level vocabularies write the byte 0x80
    backend = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert answer_of(tokenizer, [1, 2, 3, 3]) == ("a\ufffdb\ufffd\ufffd", [0, 2, 3, 4])


def test_with_byte_fallback_each_byte_of_a_broken_character_has_a_place() -> None:
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581go": 256, "x": 257}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert answer_of(tokenizer, [0xE6, 0x97]) == ("\ufffd\ufffd", [0, 1])
    assert answer_of(tokenizer, [0xE6, 0x97, 0xA5, 256, 0xE6, 256]) == ("日 go\ufffd go", [0, 0, 0, 1, 4, 5])
