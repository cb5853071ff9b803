"""Whether the token ids of two models mean the same, without their tokenizers side by side."""

from __future__ import annotations

import hashlib
from typing import Protocol


class HasVocabulary(Protocol):
    """The part of a tokenizer that decides whether two models can share token ids."""

    def get_vocab(self) -> dict[str, int]: ...


def vocab_fingerprint(tokenizer: HasVocabulary) -> str:
    """A hash of the token -> id map, added tokens included: equal iff the two share all ids.

    It knows nothing of the embedding, so a padded one (151936 or 152064 rows for the same tokenizer) changes nothing.
    """
    digest = hashlib.sha256()
    for token, token_id in sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{token_id}\0{token}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
