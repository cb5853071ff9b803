"""What a step would like for a request, and what the request gets: from a hub or from its own n-grams."""

from __future__ import annotations

from typing import Final, NamedTuple

from starspec.integrations.vllm.rows import KnownRequest


class Wanted(NamedTuple):
    """What a step would like for one request."""

    request: KnownRequest
    num_draft_tokens: int


class Draft(NamedTuple):
    """What it gets."""

    token_ids: list[int]
    num_asked: int  # at least as many: a hub may end a draft before, in doubt


NO_DRAFT: Final = Draft([], 0)
