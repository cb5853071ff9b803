"""What can draft, in vLLM's words, and what is true of each: all that depends on the method asks here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

DraftMethod = Literal["draft_model", "eagle", "eagle3", "ngram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodTraits:
    """True of all drafts of a method."""

    needs_model: bool  # it drafts by a checkpoint, whose rows hold keys and values
    reads_features: bool  # hidden states of the target
    draws_trees: bool  # else chains
    knows_probabilities: bool  # of its tokens
    why_not_ahead: str | None  # it runs ahead, and shares prefixes between targets; or why it does neither


HEAD: Final = MethodTraits(
    needs_model=True,
    reads_features=True,
    draws_trees=True,
    knows_probabilities=True,
    why_not_ahead="reads what its target's verdicts bring",
)
DRAFT_METHODS: Final[Mapping[DraftMethod, MethodTraits]] = {
    "draft_model": MethodTraits(
        needs_model=True, reads_features=False, draws_trees=True, knows_probabilities=True, why_not_ahead=None
    ),
    "eagle": HEAD,
    "eagle3": HEAD,
    "ngram": MethodTraits(
        needs_model=False,
        reads_features=False,
        draws_trees=False,
        knows_probabilities=False,
        why_not_ahead="looks its tokens up in no time",
    ),
}
