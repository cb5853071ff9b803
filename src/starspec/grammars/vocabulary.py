"""The bytes of a model's tokens, how a text that a grammar forces becomes tokens, and a vocabulary without a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper


def make_vocabulary(tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The vocabulary of a transformers tokenizer, for logits of `vocab_size` tokens.

    Raises: any exception, if the tokenizer does not say which bytes its tokens are.
    """
    from llguidance.hf import from_tokenizer  # noqa: PLC0415 (imports transformers)

    vocabulary = from_tokenizer(tokenizer, vocab_size, [*eos_token_ids] or None)
    spelling = TokenizerWrapper(_Spelling(vocabulary))
    return LLTokenizer(spelling, n_vocab=vocab_size, eos_token=vocabulary.eos_tokens)


def special_tokens_of(tokenizer: Any) -> tuple[str, ...]:
    """The names of a transformers tokenizer's tokens that a grammar can ask for by name, as `<tool_call>`."""
    names = {each.content for each in getattr(tokenizer, "added_tokens_decoder", {}).values()}
    return tuple(sorted(each for each in names if each.startswith("<") and each.endswith(">")))


@cache
def bytes_and(names: tuple[str, ...]) -> LLTokenizer:
    """A vocabulary of the 256 bytes, an end token, and special tokens of these names."""
    vocabulary = _Bytes(names)
    ends = [vocabulary.eos_token_id]
    return LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens), eos_token=ends)


class _Bytes:
    """The attributes are those that `TokenizerWrapper` asks for."""

    def __init__(self, names: Sequence[str]) -> None:
        self.tokens = [bytes([each]) for each in range(256)] + [each.encode() for each in ("<eos>", *names)]
        self.eos_token_id = 256
        self.bos_token_id = None
        self.special_token_ids = list(range(256, len(self.tokens)))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


class _Spelling:
    """Tokenizes text in which the names of special tokens are text like any other.

    Tokenizers read such a name as the special token. A grammar means the text, so llguidance would force a token that
    it then refuses. Here each name is cut after its first byte, and the parts are tokenized one by one.

    The attributes are those that `TokenizerWrapper` asks for.
    """

    def __init__(self, vocabulary: LLTokenizer) -> None:
        ids = range(vocabulary.vocab_size)
        self.eos_token_id = vocabulary.eos_token
        self.bos_token_id = None
        self.tokens = [vocabulary.decode_bytes([each]) for each in ids]
        self.special_token_ids = [each for each in ids if vocabulary.is_special_token(each)]
        self._vocabulary = vocabulary
        names = [self.tokens[each] for each in self.special_token_ids if len(self.tokens[each]) > 1]
        cuts = [b"(?<=%b)(?=%b)" % (re.escape(each[:1]), re.escape(each[1:])) for each in names]
        self._cuts = re.compile(b"|".join(cuts)) if cuts else None

    def __call__(self, text: bytes) -> list[int]:
        parts = [text] if self._cuts is None else self._cuts.split(text)
        return [token_id for part in parts for token_id in self._vocabulary.tokenize_bytes(part)]
