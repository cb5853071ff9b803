"""Prompt lookup: propose the tokens that followed the last time that the sequence ended in the same n-gram.

Saxena 2023, "Prompt Lookup Decoding"; vLLM's `method: "ngram"`. A dictionary replaces the search, so that a proposal
costs the same at 100 tokens and at 100,000.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class NgramIndex:
    """Where each n-gram of one growing sequence occurred last.

    Appending costs `max_ngram - min_ngram + 1` dictionary entries a token. Tokens cannot be taken back, so append
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

    def propose(self, num_tokens: int, presumed: Sequence[int] = ()) -> list[int]:
        """Copy the tokens after the most recent earlier occurrence of the longest suffix that has one.

        A copy that reaches the end of the sequence continues with its own first tokens, so a repeating text is
        continued for as long as requested.

        Args:
            presumed: tokens that may follow the committed ones; the copy follows them.
        Returns: `num_tokens` tokens, or none if no suffix has occurred before.
        """
        token_ids = [*self._token_ids, *presumed] if presumed else self._token_ids
        known = len(token_ids)
        for size in self._sizes:
            if size < known and (start := self._follower.get(tuple(token_ids[known - size :]))) is not None:
                period = known - start
                return [token_ids[start + offset % period] for offset in range(num_tokens)]
        return []


class PromptLookup(Generic[Key]):
    """An `NgramIndex` for each of many sequences, found by a key of the caller's.

    Args:
        min_ngram: shortest run of tokens that is looked up, at least 1.
        max_ngram: longest.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = (min_ngram, max_ngram)
        self._indexes: dict[Key, NgramIndex] = {}

    @property
    def lengths(self) -> dict[Key, int]:
        """Indexed tokens of each sequence."""
        return {key: len(index) for key, index in self._indexes.items()}

    def num_indexed(self, key: Key) -> int:
        """Indexed tokens of one sequence; 0 if it is unknown."""
        return len(self._indexes[key]) if key in self._indexes else 0

    def append(self, key: Key, token_ids: Iterable[int]) -> None:
        """Add committed tokens to the end of a sequence, which begins with them if it is unknown."""
        if key not in self._indexes:
            self._indexes[key] = NgramIndex(*self._sizes)
        self._indexes[key].append(token_ids)

    def propose(self, key: Key, num_tokens: int, presumed: Sequence[int] = ()) -> list[int]:
        """As NgramIndex; nothing for an unknown sequence."""
        return self._indexes[key].propose(num_tokens, presumed) if key in self._indexes else []

    def forget(self, key: Key) -> None:
        """Drop a sequence's index. Idempotent."""
        self._indexes.pop(key, None)
