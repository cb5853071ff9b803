"""Prompt lookup: guess that the text goes on as it did the last time that it read like this.

Saxena 2023, "Prompt Lookup Decoding"; vLLM's `method: "ngram"`. Here a dictionary replaces the search, so that a
proposal costs the same at 100 tokens and at 100,000.
"""

from __future__ import annotations

from collections.abc import Iterable


class NgramIndex:
    """Where each n-gram of one growing sequence occurred last.

    Appending costs `max_ngram - min_ngram + 1` dictionary entries a token. Tokens are never taken back: append
    committed tokens only.

    Args:
        min_ngram: shortest run of tokens that is looked up, at least 1 (`prompt_lookup_min`).
        max_ngram: longest (`prompt_lookup_max`).
        token_ids: the sequence so far.
    """

    def __init__(self, min_ngram: int, max_ngram: int, token_ids: Iterable[int] = ()) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"need 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}")
        self._sizes = range(max_ngram, min_ngram - 1, -1)  # longest first
        self._token_ids: list[int] = []
        self._follower: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its last occurrence
        self.append(token_ids)

    def __len__(self) -> int:
        return len(self._token_ids)

    def append(self, token_ids: Iterable[int]) -> None:
        """Add committed tokens to the end of the sequence."""
        for token_id in token_ids:
            end = len(self._token_ids)
            for size in self._sizes:
                if size <= end:
                    self._follower[tuple(self._token_ids[end - size :])] = end
            self._token_ids.append(token_id)

    def propose(self, num_tokens: int) -> list[int]:
        """Guess how the sequence goes on.

        The longest suffix with an earlier occurrence wins, and of its occurrences the most recent one. A
        continuation that reaches the end of the sequence goes on into what it has just copied, so a repeating
        text is continued for as long as asked.

        Returns: `num_tokens` tokens, or none if no suffix has occurred before.
        """
        known = len(self._token_ids)
        for size in self._sizes:
            if size < known and (start := self._follower.get(tuple(self._token_ids[known - size :]))) is not None:
                period = known - start
                return [self._token_ids[start + offset % period] for offset in range(num_tokens)]
        return []
