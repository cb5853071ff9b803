"""The nodes of one sequence's draft tree: what the drafter has told so far, and what a verdict leaves of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from starspec.errors import OurBug
from starspec.speculation.budget import TopKSpec
from starspec.speculation.tree import ROOT, DrawnCandidates, TopTokens


class DraftToken(NamedTuple):
    """One child of a node, as the drafter sees it."""

    token_id: int
    log_confidence: float  # log of the probability that the target emits this token here; at most 0


class Children(NamedTuple):
    """The children of one node."""

    tokens: list[DraftToken]  # likeliest first, or in the order in which they were drawn
    draft: DrawnCandidates | None = None  # what they were drawn from; None: they are the likeliest tokens
    entropy: float = 0.0  # of the drafter's distribution, in nats; 0 = not asked for
    top: TopTokens | None = None  # what the target is told of it; None = nothing


class Survivors(NamedTuple):
    """The K/V of a tree that is still true after a verdict. Both are indices of slots behind the prefix."""

    path: list[int]  # these slots belong to the prefix now, ancestors first
    kept: list[int]  # these slots belong to nodes below the new root


class TreeNodes:
    """Nodes below the last committed token, in the order in which they became known.

        known              a b │ c d e f │ ...        parents of c, d: a; of e, f: b
        forwarded              a b   c e   ...        in the order of their slots

    A node is *expanded* when its children are known. It has then been forwarded, and its K/V lies in the slots behind
    the committed prefix.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start again from a root that is not expanded."""
        self.token_ids: list[int] = []
        self.forwarded: list[int] = []
        self.top_k_spec: TopKSpec | None = None  # what the drafter was asked about each expanded node
        self.is_looked_up = False  # the nodes have no probabilities
        self._parents: list[int] = []
        self._log_confidences: list[float] = []
        self._children: dict[int, list[int]] = {}  # expanded node -> its children, in the order of `Children`
        self._drafts: dict[
            int, DrawnCandidates
        ] = {}  # expanded node -> what its children were drawn from, if they were
        self._entropies: dict[int, float] = {}  # expanded node -> entropy after it, if it was asked for
        self._tops: dict[int, TopTokens] = {}  # expanded node -> the likeliest tokens after it, likewise
        self._nodes_changed()

    @property
    def is_rooted(self) -> bool:
        """Whether the root has been expanded."""
        return ROOT in self._children

    @property
    def expanded(self) -> Set[int]:
        """Nodes whose children are known, the root among them."""
        return self._children.keys()

    def parent(self, node: int) -> int:
        return self._parents[node]

    def path(self, node: int) -> list[int]:
        """Token ids from below the root down to the node."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.token_ids[node])
            node = self._parents[node]
        return tokens[::-1]

    def segment(self, nodes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Token ids and parents of the forwarded nodes and then of `nodes`, as a `Segment` wants them."""
        order = [*self.forwarded, *nodes]
        index_of = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
        return [self.token_ids[node] for node in order], [index_of[self._parents[node]] for node in order]

    def expand(self, node: int, children: Children, top_k_spec: TopKSpec) -> None:
        """Make the children of a node known: the drafter's answer to `top_k_spec`. Raises: OurBug if they are."""
        if node in self._children:
            raise OurBug(f"node {node} is expanded twice")
        known = self._children[node] = list[int]()
        for token_id, log_confidence in children.tokens:
            known.append(len(self.token_ids))
            self.token_ids.append(token_id)
            self._log_confidences.append(log_confidence)
            self._parents.append(node)
        if children.draft is not None:
            self._drafts[node] = children.draft
        if children.entropy:
            self._entropies[node] = children.entropy
        if children.top is not None:
            self._tops[node] = children.top
        self.top_k_spec = top_k_spec
        if node != ROOT:
            self.forwarded.append(node)
        self._node_expanded()

    def become_chain(self, token_ids: Sequence[int]) -> None:
        """Replace everything by a chain, for a drafter that knows all of it at once and has no K/V."""
        self.clear()
        self.is_looked_up = True
        for node, token_id in enumerate(token_ids, start=ROOT):
            self._children[node] = [node + 1]
            self._parents.append(node)
            self.token_ids.append(token_id)
            self._log_confidences.append(0.0)
        self._children.setdefault(ROOT, [])

    def reroot(self, token_ids: Sequence[int]) -> Survivors:
        """Follow committed tokens down the tree. The node that they lead to is the new root.

        If they leave the tree, or end at a node that was not expanded, the tree is cleared.
        """
        path = self._followed(token_ids)
        node = path[-1] if path else ROOT
        slots = {each: slot for slot, each in enumerate(self.forwarded)}
        path_slots = [slots[each] for each in path if each in slots]
        if len(path) < len(token_ids) or node not in self._children:
            self.clear()
            return Survivors(path_slots, [])
        return Survivors(path_slots, self._keep_below(node, slots))

    def knows_after(self, token_ids: Sequence[int]) -> bool:
        """Whether a `reroot` by these tokens leads to an expanded node."""
        path = self._followed(token_ids)
        return len(path) == len(token_ids) and path[-1] in self._children

    def are_kept(self, nodes: Iterable[int], token_ids: Sequence[int]) -> bool:
        """Whether any of the nodes, once expanded, would outlive a `reroot` by these tokens, or be the new root."""
        path = self._followed(token_ids)
        return len(path) == len(token_ids) and any(path[-1] in self._ancestry(node) for node in nodes)

    def check_integrity(self) -> None:
        """Raises: OurBug unless parents, children and forwarded nodes agree."""
        edges = {(parent, child) for parent, children in self._children.items() for child in children}
        if edges != {(parent, node) for node, parent in enumerate(self._parents)}:
            raise OurBug(f"children {self._children} are not those of parents {self._parents}")
        if not self._drafts.keys() <= self._children.keys():
            raise OurBug(f"drawn below {self._drafts.keys()}, but {self._children.keys()} are expanded")
        if any(self._parents[node] not in (ROOT, *self.forwarded[:slot]) for slot, node in enumerate(self.forwarded)):
            raise OurBug(f"forwarded {self.forwarded} before their parents")

    def _node_expanded(self) -> None:
        """One more node is expanded. For subclasses that remember what they computed."""

    def _nodes_changed(self) -> None:
        """Nodes are gone, or have other numbers. For subclasses that remember what they computed."""

    def _copy_nodes_to(self, other: TreeNodes) -> None:
        other.is_looked_up = self.is_looked_up
        other.token_ids, other.forwarded, other.top_k_spec = [*self.token_ids], [*self.forwarded], self.top_k_spec
        other._parents, other._log_confidences = [*self._parents], [*self._log_confidences]
        other._children = {node: [*children] for node, children in self._children.items()}
        other._drafts = dict(self._drafts)
        other._entropies, other._tops = dict(self._entropies), dict(self._tops)

    def _followed(self, token_ids: Sequence[int]) -> list[int]:
        """Nodes that the tokens lead to, one after the other, as far as they are in the tree."""
        path, node = list[int](), ROOT
        for token_id in token_ids:
            child = next((each for each in self._children.get(node, ()) if self.token_ids[each] == token_id), None)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _ancestry(self, node: int) -> Iterable[int]:
        """The node and its ancestors, without the root."""
        while node != ROOT:
            yield node
            node = self._parents[node]

    def _keep_below(self, root: int, slots: dict[int, int]) -> list[int]:
        """Drop all but the nodes below `root`. Returns: their slots, in order."""
        new = {root: ROOT}
        for node, parent in enumerate(self._parents):  # parents come first
            if parent in new:
                new[node] = len(new) - 1
        kept = sorted(slots[node] for node in new if node in slots and node != root)
        self.forwarded = [new[node] for node in self.forwarded if node in new and node != root]
        self._children = {
            new[node]: [new[each] for each in self._children[node]] for node in new if node in self._children
        }
        self._drafts = {new[node]: self._drafts[node] for node in new if node in self._drafts}
        self._entropies = {new[node]: self._entropies[node] for node in new if node in self._entropies}
        self._tops = {new[node]: self._tops[node] for node in new if node in self._tops}
        nodes = [node for node in new if node != root]
        self._parents = [new[self._parents[node]] for node in nodes]
        self.token_ids = [self.token_ids[node] for node in nodes]
        self._log_confidences = [self._log_confidences[node] for node in nodes]
        self._nodes_changed()
        return kept
