"""A hash that tells whether two models share their token ids, without comparing their tokenizers."""

from __future__ import annotations

import hashlib
from typing import Protocol


class HasVocabulary(Protocol):
    """The part of a tokenizer that decides whether two models can share token ids."""

    def get_vocab(self) -> dict[str, int]: ...


def vocab_fingerprint(tokenizer: HasVocabulary) -> str:
    """A hash of the token -> id map, including added tokens. Two models share all token ids iff it is equal.

    The size of the embedding has no effect: Qwen2.5 models have 151936 or 152064 rows for the same tokenizer.
    """
    digest = hashlib.sha256()
    for token, token_id in sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{token_id}\0{token}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
