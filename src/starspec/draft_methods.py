"""The draft methods, in vLLM's words, and what each can do. Code that depends on the method asks here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

DraftMethod = Literal["draft_model", "eagle", "eagle3", "ngram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodTraits:
    """What all drafts of a method have in common."""

    needs_model: bool  # drafts with a checkpoint and keeps keys and values in cache rows
    reads_features: bool  # takes hidden states of the target (features) as input
    draws_trees: bool  # can draft trees; otherwise chains only
    knows_probabilities: bool  # gives a probability with each draft token
    why_not_ahead: str | None  # why it cannot run ahead or share prefixes between targets; None = it can do both


HEAD: Final = MethodTraits(
    needs_model=True,
    reads_features=True,
    draws_trees=True,
    knows_probabilities=True,
    why_not_ahead="needs what its target's verdicts bring",
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
        why_not_ahead="takes no time to look its tokens up",
    ),
}


def method_named(name: str) -> DraftMethod | None:
    """The method of this name, as a hub says it; None if it says none, or one of another release."""
    return next((each for each in DRAFT_METHODS if each == name), None)


def drafts_itself(method: str) -> bool:
    """Whether a target drafts by this method without a hub."""
    return method == "ngram"
