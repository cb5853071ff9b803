"""The draft tree that a hub proposes and a target verifies. A chain is a tree."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

ROOT = -1  # the parent of a node that follows the last committed token
MAX_SUPPORT = 64  # tokens with a probability in a draft's distribution, at most
MAX_STATED = 32  # likeliest tokens that a proposal states after one node, at most


class TopTokens(NamedTuple):
    """A draft model's likeliest tokens after one node. Advice: no strict rule accepts a token because of it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # natural logarithms, of the whole distribution


class Drawing(Enum):
    """How a draft drew its candidates. The acceptance rule must match it."""

    WITH_REPLACEMENT = "with replacement"
    WITHOUT_REPLACEMENT = "without replacement"


@dataclass(frozen=True, slots=True)
class DrawnCandidates:
    """The candidates that a draft drew below one node, and the distribution that it drew them from.

    The distribution is exactly sparse: tokens that are not listed have probability 0. Candidates that were chosen
    without random numbers have no `DrawnCandidates`: see `DraftTree`.

    Raises: ValueError if the numbers are not a distribution, or if these candidates cannot have been drawn from it so.
    """

    candidates: tuple[int, ...]  # all that were drawn, in the order of drawing
    token_ids: tuple[int, ...]  # distinct
    probs: tuple[float, ...]  # of `token_ids`, positive, with sum 1 up to rounding
    drawing: Drawing

    def __post_init__(self) -> None:
        if min((*self.token_ids, *self.candidates), default=0) < 0:
            raise ValueError("a token id must not be negative")
        if len(self.token_ids) != len(self.probs) or len(set(self.token_ids)) != len(self.token_ids):
            raise ValueError(f"{len(self.probs)} probabilities for {len(set(self.token_ids))} distinct tokens")
        if not all(0.0 < prob <= 1.0 + 1e-6 for prob in self.probs) or abs(sum(self.probs) - 1.0) > 1e-6:
            raise ValueError(f"probabilities must be positive with sum 1, got sum {sum(self.probs)}")
        if not set(self.candidates) <= set(self.token_ids):
            raise ValueError("a candidate has no probability, so it cannot have been drawn")
        is_repeated = len(set(self.candidates)) < len(self.candidates)
        if is_repeated and self.drawing is not Drawing.WITH_REPLACEMENT:
            raise ValueError("a candidate occurs twice, which is possible only with replacement")


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens with their parents, in topological order.

    Node i carries `token_ids[i]` and is a child of node `parents[i] < i`, or of the last committed token (`ROOT`).
    Siblings carry different tokens.

        committed ── 0 ── 1 ── 3        token_ids = (t0, t1, t2, t3)
                     └─── 2             parents   = (ROOT, 0, 0, 1)

    `logprobs` and `tops` say how sure the draft was. They are there only if they were asked for. They decide nothing
    but what relaxed verification accepts, and trees that differ only in them are equal.

    The children of a node are predictions of the target's draw, unless `drafts` has an entry for the node. The entry
    says that they were drawn, and from which distribution; a drawn candidate need not have a node.

    Raises: ValueError if the parents are not a forest in topological order, if siblings share a token, if a node is
        not among the candidates that were drawn below its parent, or if `logprobs` or `tops` belong to other nodes.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    drafts: Mapping[int, DrawnCandidates] = field(default_factory=dict, hash=False)  # parent -> what was drawn below it
    logprobs: tuple[float, ...] = field(default=(), compare=False)  # of each node after its parent; () = unknown
    tops: Mapping[int, TopTokens] = field(default_factory=dict, compare=False)  # parent -> the likeliest after it

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.parents):
            raise ValueError(f"{len(self.token_ids)} tokens but {len(self.parents)} parents")
        edges = set(zip(self.parents, self.token_ids, strict=True))
        if len(edges) != len(self.token_ids):
            raise ValueError("two siblings carry the same token")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: parents must come first")
        if self.logprobs or self.tops:
            self._check_advice()
        if self.drafts:
            self._check_drawn()

    @classmethod
    def chain(cls, token_ids: list[int] | tuple[int, ...]) -> DraftTree:
        """A tree with a single path."""
        return cls(tuple(token_ids), tuple(range(ROOT, len(token_ids) - 1)))

    @property
    def num_draft_tokens(self) -> int:
        """Nodes of the tree, without the committed root."""
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
        """The part of the tree that is left if the text continues with these tokens.

        Returns: an empty tree if the tree has no such path. Drawn candidates are kept, because the path to a node does
            not change what was drawn below it.
        """
        node = ROOT
        for token_id in token_ids:
            if (node, token_id) not in self.children:
                return EMPTY_TREE
            node = self.children[node, token_id]
        kept = {node}
        for child, parent in enumerate(self.parents):
            if parent in kept:
                kept.add(child)
        return self._part(node, sorted(kept - {node}))

    def restricted(self, nodes: Collection[int]) -> DraftTree:
        """The tree of these nodes alone. Args: nodes: with all ancestors. Drawn candidates are kept, as in `after`."""
        return self._part(ROOT, sorted(nodes))

    def extended(self, chains: Mapping[int, Sequence[int]]) -> DraftTree:
        """The tree with a chain of further tokens below each of these leaves, behind the nodes that there are.

        What was drawn below such a leaf is left out: the further tokens are predictions, and sure ones.
        """
        token_ids, parents = [*self.token_ids], [*self.parents]
        for leaf, chain in chains.items():
            parents += [leaf, *range(len(token_ids), len(token_ids) + len(chain) - 1)]
            token_ids += chain
        num_added = len(token_ids) - len(self.token_ids)
        return DraftTree(
            tuple(token_ids),
            tuple(parents),
            {node: draft for node, draft in self.drafts.items() if node not in chains},
            (*self.logprobs, *[0.0] * num_added) if self.logprobs else (),
            self.tops,
        )

    def behind(self, token_ids: Sequence[int]) -> DraftTree:
        """The tree below a chain of these tokens. They are predictions, and sure ones."""
        num = len(token_ids)
        if not num:
            return self
        return DraftTree(
            (*token_ids, *self.token_ids),
            (*range(ROOT, num - 1), *(parent + num for parent in self.parents)),
            {node + num: draft for node, draft in self.drafts.items()},
            (*[0.0] * num, *self.logprobs) if self.logprobs else (),
            {node + num: top for node, top in self.tops.items()},
        )

    def _part(self, root: int, nodes: Sequence[int]) -> DraftTree:
        """The tree of these nodes, ascending. The parent of each is among them, or is `root`."""
        kept = {root: ROOT} | {node: index for index, node in enumerate(nodes)}
        return DraftTree(
            tuple(self.token_ids[each] for each in nodes),
            tuple(kept[self.parents[each]] for each in nodes),
            {kept[each]: draft for each, draft in self.drafts.items() if each in kept},
            tuple(self.logprobs[each] for each in nodes) if self.logprobs else (),
            {kept[each]: top for each, top in self.tops.items() if each in kept},
        )

    def _check_advice(self) -> None:
        if self.logprobs and len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.logprobs)} log-probabilities for {len(self.token_ids)} nodes")
        if not all(ROOT <= node < len(self.token_ids) for node in self.tops):
            raise ValueError(f"likeliest tokens after nodes {sorted(self.tops)} of a tree of {len(self.token_ids)}")
        for top in self.tops.values():
            if len(top.token_ids) != len(top.logprobs):
                raise ValueError(f"{len(top.logprobs)} log-probabilities for {len(top.token_ids)} tokens")
            if len(set(top.token_ids)) != len(top.token_ids):
                raise ValueError("a token is stated twice among the likeliest")
        stated = (*self.logprobs, *(each for top in self.tops.values() for each in top.logprobs))
        if not all(each <= 1e-6 for each in stated):  # not so for nan
            raise ValueError("a log-probability is at most 0")

    def _check_drawn(self) -> None:
        if not all(ROOT <= node < len(self.token_ids) for node in self.drafts):
            raise ValueError(f"drawn below nodes {sorted(self.drafts)} of a tree of {len(self.token_ids)}")
        for (parent, token_id), node in self.children.items():
            if parent in self.drafts and token_id not in self.drafts[parent].candidates:
                raise ValueError(f"node {node} carries token {token_id}, which was not drawn below node {parent}")


EMPTY_TREE = DraftTree()
