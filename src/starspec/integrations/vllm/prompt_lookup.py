"""Drafts of a request's own n-grams, in vLLM's process, while there is no hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starspec.integrations.vllm.draft import Draft, Wanted
from starspec.integrations.vllm.rows import KnownRequest
from starspec.speculation.ngram import NgramIndex

MAX_INDEXED: Final = 4096  # tokens that the indexes take in in one step: a hub may go while prompts are long


class PromptLookup:
    """An index of each request, made when it is first asked for and kept until the request is gone.

    Args:
        shortest, longest: n-gram that is looked up, in tokens.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._indexes: dict[KnownRequest, NgramIndex] = {}

    def draft(self, wanted: Sequence[Wanted]) -> dict[KnownRequest, Draft]:
        """One step's drafts, of those that have one; none of a request before its index has all tokens."""
        drafts: dict[KnownRequest, Draft] = {}
        num_left = MAX_INDEXED
        for request, num_draft_tokens in [each for each in wanted if each.num_draft_tokens]:
            index = self._index_of(request)
            new = request.token_ids(len(index), len(index) + num_left)
            num_left -= len(new)
            index.append(new)
            if len(index) == len(request) and (token_ids := index.propose(num_draft_tokens)):
                drafts[request] = Draft(token_ids, num_draft_tokens)
        return drafts

    def forget(self, requests: Sequence[KnownRequest]) -> None:
        """They are gone."""
        for request in requests:
            self._indexes.pop(request, None)

    def _index_of(self, request: KnownRequest) -> NgramIndex:
        index = self._indexes.get(request)
        if index is None:
            index = self._indexes[request] = NgramIndex(self._shortest, self._longest)
        return index
