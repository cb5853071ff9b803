"""Single tokens spelled out: no byte is lost, whatever the kind of vocabulary."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from starspec.gateway.token_text import BYTE_OF, TokenText


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
