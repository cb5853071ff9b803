"""Drafts for vLLM's requests: how they are requested, and those from a request's own n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from starspec.integrations.vllm.rows import KnownRequest
from starspec.speculation.ngram import PromptLookup

MAX_INDEXED: Final = 4096  # tokens that are indexed in one step: a hub may be lost while prompts are long


class DraftRequest(NamedTuple):
    """A draft that a step wants for one of vLLM's requests."""

    request: KnownRequest
    num_draft_tokens: int


class Draft(NamedTuple):
    """Draft tokens for one of vLLM's requests."""

    token_ids: list[int]
    num_requested: int  # at least as many: a hub may end a draft early


NO_DRAFT: Final = Draft([], 0)


class LocalNgramDrafts:
    """Prompt lookup in vLLM's process, while there is no hub.

    A request is indexed when a draft is first requested for it, and until it is gone.

    Args:
        min_ngram: shortest run of tokens that is looked up.
        max_ngram: longest.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._lookup = PromptLookup[KnownRequest](min_ngram, max_ngram)

    def draft(self, wanted: Sequence[DraftRequest]) -> dict[KnownRequest, Draft]:
        """Drafts of the requests that have one. A request has none before all its tokens are indexed."""
        drafts: dict[KnownRequest, Draft] = {}
        num_left = MAX_INDEXED
        for request, num_draft_tokens in [each for each in wanted if each.num_draft_tokens]:
            start = self._lookup.num_indexed(request)
            unindexed = request.token_ids(start, start + num_left)
            num_left -= len(unindexed)
            self._lookup.append(request, unindexed)
            is_indexed = start + len(unindexed) == len(request)
            if is_indexed and (token_ids := self._lookup.propose(request, num_draft_tokens)):
                drafts[request] = Draft(token_ids, num_draft_tokens)
        return drafts

    def forget(self, requests: Sequence[KnownRequest]) -> None:
        """Drop the indexes of requests that are gone."""
        for request in requests:
            self._lookup.forget(request)
