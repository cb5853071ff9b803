"""What one token says by itself: its bytes, for log-probabilities, where half a character must have a spelling."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

BYTE_PIECE: Final = re.compile(r"<0x([0-9A-F]{2})>")  # byte fallback of SentencePiece-like vocabularies
SPACE_PIECE: Final = "\u2581"  # their space


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character: itself where it is one, else one from U+0100 on."""
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
        r"""The token's text; `bytes:\xe2\x82` when it is no whole characters, as OpenAI writes it."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._verbatim:
            return str(self._verbatim[token_id]).encode()
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        if piece is None:  # a row of a padded embedding that no text leads to
            return b""
        if self._is_byte_level and all(char in BYTE_OF for char in piece):
            return bytes(BYTE_OF[char] for char in piece)
        if match := BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return str(piece).replace(SPACE_PIECE, " ").encode()
