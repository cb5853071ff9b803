"""Limits that both ends of a link know."""

from __future__ import annotations

from typing import Final

from starspec.speculation.budget import MAX_FORWARDED

MAX_DRAFT_TOKENS: Final = MAX_FORWARDED  # nodes of a proposal
MAX_TOP_K: Final = 16  # children of a draft node
MAX_TOP_LOGPROBS: Final = 20
MAX_STOP_LEN: Final = 10_000  # characters of a stop string
MAX_LOOKUP: Final = 16  # tokens of an n-gram; an index has one of each length for each token
MAX_FEATURE_LAYERS: Final = 16  # hidden states of one position that a head may take
