"""Single tokens in replies: their text, their bytes, and log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final

import msgspec
from msgspec import Raw

from starspec.gateway.replies import (
    ChatLogprobs,
    ChatTokenLogprob,
    CompletionLogprobs,
    PromptTokenLogprob,
    TokenAlternative,
)
from starspec.wire.messages import PromptLogprob, TokenLogprob

BYTE_PIECE: Final = re.compile(r"<0x([0-9A-F]{2})>")  # byte fallback of SentencePiece-like vocabularies
MAX_CHAR_BYTES: Final = 4  # of a character in UTF-8; a token has at least one
BROKEN: Final = "\ufffd"  # in a text: bytes that do not form a character
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

    def without_open_character(self, text: str, token_ids: Sequence[int]) -> str:
        """The text of these tokens without a character at its end that they begin and do not complete."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(map(self.bytes_of, token_ids[-MAX_CHAR_BYTES:])))
        num_open = len(decoder.getstate()[0])  # bytes; a decoder writes one U+FFFD for all, or one for each
        return text[: max(len(text.rstrip(BROKEN)), len(text) - num_open)]

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


def completion_logprobs(
    entries: Sequence[TokenLogprob], tokens: TokenText, text: str, start: int = 0
) -> CompletionLogprobs:
    """Parallel lists. `top_logprobs` always includes the generated token, as in OpenAI's API.

    Args:
        text: the answer's text so far. A token that a stop string cut off has its offset at the end.
        start: characters in front of the answer, which offsets count.
    """
    texts = [tokens.text_of(entry.token_id) for entry in entries]
    offsets = [start + offset for offset in _offsets(entries, tokens, text)]
    top = [_top(text, entry.logprob, entry.top, tokens) for entry, text in zip(entries, texts, strict=True)]
    return CompletionLogprobs(texts, [entry.logprob for entry in entries], [*top], offsets)


def echoed_logprobs(
    token_ids: Sequence[int], entries: Sequence[PromptLogprob], tokens: TokenText, text: str, num_top: int
) -> CompletionLogprobs:
    """As `completion_logprobs`, of a prompt, whose first token has none.

    Args:
        token_ids: of the prompt.
        entries: of all but the first.
        text: of the prompt.
    """
    texts = [tokens.text_of(token_id) for token_id in token_ids]
    top = [_top(text, each.logprob, each.top[:num_top], tokens) for each, text in zip(entries, texts[1:], strict=True)]
    offsets = _spelled_at([tokens.bytes_of(token_id) for token_id in token_ids], text)
    return CompletionLogprobs(texts, [None, *(each.logprob for each in entries)], [None, *top], offsets)


def joined(first: CompletionLogprobs, then: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        first.tokens + then.tokens,
        first.token_logprobs + then.token_logprobs,
        first.top_logprobs + then.top_logprobs,
        first.text_offset + then.text_offset,
    )


def vllm_logprobs(entry: PromptLogprob, tokens: TokenText, num_top: int) -> Raw:
    """One of vLLM's `prompt_logprobs`: the prompt's token and the likeliest ones, by token id."""
    likely = {
        str(token_id): PromptTokenLogprob(logprob, place, tokens.text_of(token_id))
        for place, (token_id, logprob) in enumerate(entry.top[:num_top], 1)
    }
    own = PromptTokenLogprob(entry.logprob, entry.rank, tokens.text_of(entry.token_id))
    return _written({str(entry.token_id): own} | likely | {str(entry.token_id): own})


def _top(token: str, logprob: float, top: Sequence[tuple[int, float]], tokens: TokenText) -> Raw:
    return _written({tokens.text_of(token_id): lp for token_id, lp in top} | {token: logprob})


def _spelled_at(pieces: Sequence[bytes], text: str) -> list[int]:
    """The characters of a prompt in which its tokens begin.

    A token that the text does not spell, such as a BOS token or what a tokenizer has normalized, has no length. One may
    begin a character that the text leaves to the answer.
    """
    spelled = text.encode()
    chars = [*accumulate((byte & 0xC0 != 0x80 for byte in spelled), initial=0)]  # [byte] -> characters begun before it
    offsets, at = [], 0
    for piece in pieces:
        begun = chars[at] if at == len(spelled) or spelled[at] & 0xC0 != 0x80 else chars[at] - 1
        offsets.append(begun)
        for form in (piece, piece.removeprefix(b" ")):  # some tokenizers put a space in front
            if spelled.startswith(form, at):
                at += len(form)
                break
        else:
            if not _is_whole(piece) and piece.startswith(spelled[at:]):
                at = len(spelled)
    return offsets


def _offsets(entries: Sequence[TokenLogprob], tokens: TokenText, text: str) -> list[int]:
    """Where each token begins in the text.

    A target states the offset of a token before it knows whether the bytes in front of it become a character. If they
    do not, they are U+FFFD in the text, and the bytes of the tokens tell which token begins behind them.
    """
    offsets = [min(entry.text_offset, len(text)) for entry in entries]
    certain = [
        index
        for index, offset in enumerate(offsets)
        if index == 0 or (offset != offsets[index - 1] and text[offset : offset + 1] != BROKEN)
    ]
    for first, after in pairwise([*certain, len(offsets)]):
        begin, end = offsets[first], offsets[after] if after < len(offsets) else len(text)
        if BROKEN in text[begin:end]:
            pieces = [tokens.bytes_of(entry.token_id) for entry in entries[first:after]]
            places = _places(pieces, text[begin:end])
            if places is not None:
                offsets[first:after] = [min(begin + place, end) for place in places]
    return offsets


def _places(pieces: Sequence[bytes], text: str) -> list[int] | None:
    """The characters of a text in which pieces begin; None if the pieces do not spell the text.

    A byte-level decoder writes one U+FFFD for a broken character, and byte fallback one for each byte.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    joined, places = "", []
    for piece in pieces:
        joined += decoder.decode(piece[:1])
        is_open = not piece or bool(decoder.getstate()[0])  # the character of its first byte is yet to come
        places.append(len(joined) if is_open else len(joined) - 1)
        joined += decoder.decode(piece[1:])
    if (joined + decoder.decode(b"", final=True)).startswith(text):
        return places
    apart = [piece.decode() if _is_whole(piece) else BROKEN * len(piece) for piece in pieces]
    return list(accumulate(map(len, apart[:-1]), initial=0)) if "".join(apart).startswith(text) else None


def _is_whole(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _written(part: ChatTokenLogprob | dict[str, float] | dict[str, PromptTokenLogprob]) -> Raw:
    """The JSON of a part. A long reply is written part by part: one call would keep all other threads waiting."""
    return Raw(msgspec.json.encode(part))


def _alternative(token_id: int, logprob: float, tokens: TokenText) -> TokenAlternative:
    return TokenAlternative(tokens.text_of(token_id), logprob, list(tokens.bytes_of(token_id)))
