"""The draft tree: what a hub proposes and a target verifies. A chain is a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

ROOT = -1  # parent of a node that hangs from the last committed token
MAX_SUPPORT = 64  # tokens to which a draft's law gives a probability


class Drawing(Enum):
    """How a draft drew its candidates. A rule is right for one way only."""

    WITH_REPLACEMENT = "with replacement"
    WITHOUT_REPLACEMENT = "without replacement"


@dataclass(frozen=True, slots=True)
class DrawnCandidates:
    """The candidates below one node and the law that they come from. Exactly sparse: other tokens have probability 0.

    Candidates that no dice chose have no DrawnCandidates: see `DraftTree`.

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


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens with their parents, in topological order.

    Node i carries `token_ids[i]` and hangs from node `parents[i] < i`, or from the last committed token
    (`ROOT`). Siblings carry different tokens.

        committed ── 0 ── 1 ── 3        token_ids = (t0, t1, t2, t3)
                     └─── 2             parents   = (ROOT, 0, 0, 1)

    Children are guesses, unless `drafts` says that they were drawn, and from what; a candidate need not have a node.

    Raises: ValueError if the parents are no forest in topological order, if siblings share a token, or if a node has
        a child that was not among the candidates drawn below it.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    drafts: Mapping[int, DrawnCandidates] = field(default_factory=dict, hash=False)  # by parent

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.parents):
            raise ValueError(f"{len(self.token_ids)} tokens but {len(self.parents)} parents")
        edges = set(zip(self.parents, self.token_ids, strict=True))
        if len(edges) != len(self.token_ids):
            raise ValueError("two siblings carry the same token")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: parents must come first")
        if self.drafts:
            self._check_drawn()

    @classmethod
    def chain(cls, token_ids: list[int] | tuple[int, ...]) -> DraftTree:
        """The tree with one path."""
        return cls(tuple(token_ids), tuple(range(ROOT, len(token_ids) - 1)))

    @property
    def num_draft_tokens(self) -> int:
        """Nodes of the tree; never counts the committed root."""
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(ROOT, len(self.parents) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; a child of the root has depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> dict[tuple[int, int], int]:
        """(parent, token) -> node: the edge that a verifier follows."""
        edges = zip(self.parents, self.token_ids, strict=True)
        return {edge: node for node, edge in enumerate(edges)}

    def after(self, token_ids: Sequence[int]) -> DraftTree:
        """What the tree says of the text that goes on with these tokens.

        Returns: empty if it says nothing. Laws are kept: how a node is reached says nothing of what was drawn below it.
        """
        node = ROOT
        for token_id in token_ids:
            if (node, token_id) not in self.children:
                return EMPTY_TREE
            node = self.children[node, token_id]
        kept = {node: ROOT}
        for child, parent in enumerate(self.parents):
            if parent in kept:
                kept[child] = len(kept) - 1
        nodes = [each for each in kept if each != node]
        return DraftTree(
            tuple(self.token_ids[each] for each in nodes),
            tuple(kept[self.parents[each]] for each in nodes),
            {kept[each]: draft for each, draft in self.drafts.items() if each in kept},
        )

    def _check_drawn(self) -> None:
        if not all(ROOT <= node < len(self.token_ids) for node in self.drafts):
            raise ValueError(f"drawn below nodes {sorted(self.drafts)} of a tree of {len(self.token_ids)}")
        for (parent, token_id), node in self.children.items():
            if parent in self.drafts and token_id not in self.drafts[parent].candidates:
                raise ValueError(f"node {node} carries token {token_id}, which was not drawn below node {parent}")


EMPTY_TREE = DraftTree()
