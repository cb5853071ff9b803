"""What a draft drew below one node of its tree, and how: what rejection sampling must be told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_SUPPORT = 64  # tokens to which a draft's law gives a probability


class Drawing(Enum):
    """How a draft drew its candidates. A rule is right for one way only."""

    WITH_REPLACEMENT = "with replacement"
    WITHOUT_REPLACEMENT = "without replacement"


@dataclass(frozen=True, slots=True)
class NodeDraft:
    """The candidates below one node and the law that they come from. Exactly sparse: other tokens have probability 0.

    Candidates that no dice chose have no NodeDraft: see `DraftTree`.

    Raises: ValueError if it is no law, or if these candidates cannot have been drawn from it that way.
    """

    candidates: tuple[int, ...]  # in the order in which they were drawn, all of them
    token_ids: tuple[int, ...]  # different
    probs: tuple[float, ...]  # of `token_ids`, positive, with sum 1 up to rounding
    drawing: Drawing

    def __post_init__(self) -> None:
        if min((*self.token_ids, *self.candidates), default=0) < 0:
            raise ValueError("token ids are not negative")
        if len(self.token_ids) != len(self.probs) or len(set(self.token_ids)) != len(self.token_ids):
            raise ValueError(f"{len(self.probs)} probabilities of {len(set(self.token_ids))} different tokens")
        if not all(0.0 < prob <= 1.0 + 1e-6 for prob in self.probs) or abs(sum(self.probs) - 1.0) > 1e-6:
            raise ValueError(f"probabilities must be positive with sum 1, not {sum(self.probs)}")
        if not set(self.candidates) <= set(self.token_ids):
            raise ValueError("a candidate has no probability: it cannot have been drawn")
        is_repeated = len(set(self.candidates)) < len(self.candidates)
        if is_repeated and self.drawing is not Drawing.WITH_REPLACEMENT:
            raise ValueError("a candidate came twice: that is drawing with replacement")
