"""Single tokens in replies: their text, their bytes, and log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from starspec.gateway.replies import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TokenAlternative
from starspec.wire.messages import TokenLogprob

BYTE_PIECE: Final = re.compile(r"<0x([0-9A-F]{2})>")  # byte fallback of SentencePiece-like vocabularies
SPACE_PIECE: Final = "\u2581"  # their space


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character: the byte itself, or a character from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_OF: Final = _byte_alphabet()


class TokenText:
    """Bytes and text of single tokens of a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._verbatim = {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = "ByteLevel" in repr(getattr(backend, "decoder", None))
        self.bytes_of = lru_cache(maxsize=65536)(self._bytes_of)

    def text_of(self, token_id: int) -> str:
        r"""The token's text; `bytes:\xe2\x82` if it is not whole characters, as in OpenAI's API."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._verbatim:
            return str(self._verbatim[token_id]).encode()
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        if piece is None:  # a row of a padded embedding that is not a token
            return b""
        if self._is_byte_level and all(char in BYTE_OF for char in piece):
            return bytes(BYTE_OF[char] for char in piece)
        if match := BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return str(piece).replace(SPACE_PIECE, " ").encode()


def chat_logprobs(entries: Sequence[TokenLogprob], tokens: TokenText, num_top: int) -> ChatLogprobs:
    """One entry a token, with its `num_top` most likely alternatives."""
    return ChatLogprobs(
        [
            _written(
                ChatTokenLogprob(
                    token=tokens.text_of(entry.token_id),
                    logprob=entry.logprob,
                    bytes=list(tokens.bytes_of(entry.token_id)),
                    top_logprobs=[_alternative(token_id, lp, tokens) for token_id, lp in entry.top[:num_top]],
                )
            )
            for entry in entries
        ]
    )


def completion_logprobs(entries: Sequence[TokenLogprob], tokens: TokenText, text_len: int) -> CompletionLogprobs:
    """Parallel lists. `top_logprobs` always includes the generated token, as in OpenAI's API.

    Args:
        text_len: characters of the answer's text so far. A token that a stop string cut off has its offset at the end.
    """
    texts = [tokens.text_of(entry.token_id) for entry in entries]
    offsets = [min(entry.text_offset, text_len) for entry in entries]
    top = [
        _written({tokens.text_of(token_id): lp for token_id, lp in entry.top} | {text: entry.logprob})
        for entry, text in zip(entries, texts, strict=True)
    ]
    return CompletionLogprobs(texts, [entry.logprob for entry in entries], top, offsets)


def _written(part: ChatTokenLogprob | dict[str, float]) -> Raw:
    """The JSON of a part. A long reply is written part by part: one call would keep all other threads waiting."""
    return Raw(msgspec.json.encode(part))


def _alternative(token_id: int, logprob: float, tokens: TokenText) -> TokenAlternative:
    return TokenAlternative(tokens.text_of(token_id), logprob, list(tokens.bytes_of(token_id)))
