"""The tree that one sequence grows, level by level: EAGLE-2's rule, and what a verdict leaves of it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence, Set
from math import exp
from operator import itemgetter
from typing import NamedTuple

from starspec.errors import OurBug
from starspec.hub.walks import Outcome, Outlook, Walk
from starspec.speculation.budget import DraftBudget, TopKSpec
from starspec.speculation.tree import ROOT, DraftTree, DrawnCandidates


class DraftToken(NamedTuple):
    """One child of a node, in the drafter's opinion."""

    token_id: int
    log_confidence: float  # log of how likely it is that the target says just this here; at most 0


class Children(NamedTuple):
    """What is to grow below one node."""

    tokens: list[DraftToken]  # likeliest first, or in the order in which they were drawn
    draft: DrawnCandidates | None = None  # what they were drawn from; None: they are guesses


class Survivors(NamedTuple):
    """What of a tree's K/V is still true after a verdict. Both are indices into the slots behind the prefix."""

    path: list[int]  # these slots belong to the prefix now, ancestors first
    kept: list[int]  # these belong to nodes below the new root


class GrowingTree:
    """Nodes below the last committed token, in the order in which they were guessed.

        guessed            a b │ c d e f │ ...        parents of c, d: a; of e, f: b
        forwarded              a b   c e   ...        the `top_k` likeliest of each level, in the order of their slots;
                                                      but none whose children would be too unlikely to be proposed

    A node is *expanded* (its children are known) when it has been forwarded, and its K/V then lies in the slots behind
    the committed prefix. Which nodes are expanded and proposed is computed from the root, so that the whole proposal
    is a function of the committed tokens and the budget alone, whatever was grown before; a chain that is handed over
    in part is a beginning of it.

    Args:
        end_token_ids: nothing comes after these.
        is_drawn: nodes are drawn, for rejection sampling, not guessed.
    """

    def __init__(self, end_token_ids: Iterable[int] = (), *, is_drawn: bool = False) -> None:
        self._end_token_ids = frozenset(end_token_ids)
        self._is_drawn = is_drawn
        self.clear()

    def clear(self) -> None:
        """Back to a root of which nothing is known."""
        self.token_ids: list[int] = []
        self.forwarded: list[int] = []
        self.top_k_spec: TopKSpec | None = None  # what the draft was asked about each expanded node, if there is one
        self._parents: list[int] = []
        self._log_confidences: list[float] = []
        self._children: dict[int, list[int]] = {}  # expanded node -> its children, in the order of `Children`
        self._drafts: dict[int, DrawnCandidates] = {}  # expanded node -> what its children were drawn from
        self._missing: tuple[DraftBudget, list[int]] | None = None  # the last answer of `to_forward`, while it is true
        self._forget_walks()

    def copy(self) -> GrowingTree:
        """Another one that grows on its own."""
        other = GrowingTree(self._end_token_ids, is_drawn=self._is_drawn)
        other.token_ids, other.forwarded, other.top_k_spec = [*self.token_ids], [*self.forwarded], self.top_k_spec
        other._parents, other._log_confidences = [*self._parents], [*self._log_confidences]
        other._children = {node: [*children] for node, children in self._children.items()}
        other._drafts = dict(self._drafts)
        return other

    @property
    def is_rooted(self) -> bool:
        """Whether the root has been expanded."""
        return ROOT in self._children

    @property
    def expanded(self) -> Set[int]:
        """Nodes whose children are known, the root among them."""
        return self._children.keys()

    def num_known(self, budget: DraftBudget) -> int:
        """Nodes that would be proposed now."""
        return len(self.proposed(budget)) if self.is_rooted else 0

    def to_forward(self, budget: DraftBudget) -> list[int]:
        """Nodes whose children must be known next; [ROOT] at first, [] when the proposal cannot change any more."""
        if self._missing is None or self._missing[0] is not budget:  # asked several times a level
            self._missing = budget, self._go_on(self._from_root(budget))
        return self._missing[1]

    def segment(self, nodes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Token ids and parents of the forwarded nodes and then of `nodes`, as a `Segment` wants them."""
        order = [*self.forwarded, *nodes]
        place = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
        return [self.token_ids[node] for node in order], [place[self._parents[node]] for node in order]

    def parent(self, node: int) -> int:
        return self._parents[node]

    def path(self, node: int) -> list[int]:
        """Tokens from below the root to the node and with it."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.token_ids[node])
            node = self._parents[node]
        return tokens[::-1]

    def expand(self, node: int, children: Children, top_k_spec: TopKSpec) -> None:
        """Make the children of a node known: the draft's answer to `top_k_spec`. Raises: OurBug if they are."""
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
        self.top_k_spec = top_k_spec
        if node != ROOT:
            self.forwarded.append(node)
        self._missing = None

    def become_chain(self, token_ids: Sequence[int]) -> None:
        """Forget all else; for a drafter that knows the whole chain at once and has no K/V."""
        self.clear()
        for node, token_id in enumerate(token_ids, start=ROOT):
            self._children[node] = [node + 1]
            self._parents.append(node)
            self.token_ids.append(token_id)
            self._log_confidences.append(0.0)
        self._children.setdefault(ROOT, [])

    def best(self, budget: DraftBudget) -> DraftTree:
        """The likeliest nodes. An ancestor is at least as likely as what hangs from it, so they are connected.

        Returns: a tree whose likeliest path comes first, so that its slots mostly need not be moved.
        """
        order = self.proposed(budget)
        if budget.is_chain and not self._drafts:
            return DraftTree.chain([self.token_ids[node] for node in order])
        place = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
        return DraftTree(
            tuple(self.token_ids[node] for node in order),
            tuple(place[self._parents[node]] for node in order),
            self._told(self._grown(budget), place) if self._drafts else {},
        )

    def proposed(self, budget: DraftBudget) -> list[int]:
        """The nodes of `best`, in its order."""
        likely: Mapping[int, float] = self._grown(budget)
        if budget.p_proposed:
            likely = {node: score for node, score in likely.items() if exp(score) >= budget.p_proposed}
        if budget.is_chain:
            return list(likely)[: budget.num_draft_tokens]
        return list(self._depth_first(_likeliest(likely, budget.num_draft_tokens)))

    def to_prepare(self, budget: DraftBudget, proposed: Sequence[int], num_nodes: int) -> list[int]:
        """Nodes whose children the proposal after this one may need: what it misses, likeliest outcomes first.

        A verdict ends at ROOT or at a proposed node, with one more token. If that is a node here, it will be the new
        root, and the next proposal grows below it. How deep in that proposal a node lies does not matter: each level
        that is there already saves the same time, if the verdict leads to it.

            proposed    a ── b ── c            b is accepted, c is not: the target said e.
                        │    └─── e ── f       Then f is worth as much as e: what the path to e is likely.
                        └─── d

        This runs for each sequence before each level that runs ahead, and a request may wait for it. So it looks at
        no more outcomes than it takes nodes of, walks on below them from where it was, and drops what is complete.

        Args:
            budget: of what is being verified, and will be asked for next.
            proposed: what is being verified, a proposal of this tree or the beginning of one; since then, the tree
                may have grown.
            num_nodes: at most so many.
        Returns: nodes in order of their depth; [] when there is nothing to prepare.
        """
        outlook = self._outlook_from(budget, frozenset((ROOT, *proposed)))
        outcomes = outlook.outcomes
        chosen: list[tuple[int, int]] = []  # depths and nodes
        place = 0
        while place < len(outcomes) and len(chosen) < num_nodes:
            outcome = outcomes[place]
            if outcome.node in outlook.ends and outcome.node in self._children:
                self._look_below(outcomes.pop(place), outcomes)
                continue
            walk = outlook.walk(outcome)
            missing = self._go_on(walk)
            if not missing:
                del outcomes[place]
                continue
            chosen += [(outcome.depth + walk.num_steps, node) for node in missing]
            place += 1
        return [node for _, node in sorted(chosen[:num_nodes], key=itemgetter(0))]

    def reroot(self, token_ids: Sequence[int]) -> Survivors:
        """Follow committed tokens down the tree; the node that they lead to is the new root.

        If they leave the tree, or end at a node that was not expanded, nothing below them is known.
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

    def _forget_walks(self) -> None:
        """Nodes have other numbers now."""
        self._missing = None
        self._root_walk: Walk | None = None  # the last one from the root
        self._outlook: Outlook | None = None  # the last one

    def _from_root(self, budget: DraftBudget) -> Walk:
        walk = self._root_walk
        if walk is None or (walk.budget is not budget and walk.budget != budget):
            walk = self._root_walk = Walk(budget, ROOT)
        return walk

    def _grown(self, budget: DraftBudget) -> Mapping[int, float]:
        """Nodes of EAGLE-2's levels from the root as far as they are known, with their log-confidences."""
        walk = self._from_root(budget)
        self._go_on(walk)
        return walk.scores

    def _outlook_from(self, budget: DraftBudget, ends: Set[int]) -> Outlook:
        outlook = self._outlook
        if outlook is None or outlook.budget != budget or outlook.ends != ends:
            outlook = self._outlook = Outlook(budget, ends)
        return outlook

    def _look_below(self, end: Outcome, outcomes: list[Outcome]) -> None:
        """Put its children among the outcomes, all of them behind it: nothing is likelier than its ancestors."""
        for child in self._children[end.node]:
            if self.token_ids[child] not in self._end_token_ids:
                insort(outcomes, Outcome(end.doubt - self._log_confidences[child], child, end.depth + 1))

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
        """The node and its ancestors, but for the root."""
        while node != ROOT:
            yield node
            node = self._parents[node]

    def _go_on(self, walk: Walk) -> list[int]:
        """Walk as far as levels are known. Returns: nodes that must be expanded to go further; [] at the end."""
        next_level = self._next_level if walk.budget.top_k_spec.needs_logprobs else self._next_of_chain
        while walk.to_expand and walk.num_steps < walk.budget.num_steps:
            unknown = [node for node in walk.to_expand if node not in self._children]
            if unknown:
                return unknown
            walk.to_expand = next_level(walk)
            walk.num_steps += 1
        return []

    def _next_level(self, walk: Walk) -> list[int]:
        """EAGLE-2's rule, less what is too unlikely to be reached, and what it expands in vain.

        Nothing is likelier than its ancestors. So a node that is not among the likeliest `num_draft_tokens` of the
        levels so far has no descendant among those of all, and is not expanded: the proposal is the same, and where
        the drafter is at a loss it is complete after fewer levels. (It counts for what the level is worth all the
        same: else the proposal would be another.)
        """
        budget, scores = walk.budget, walk.scores
        level = [child for node in walk.to_expand for child in self._children[node][: budget.top_k]]
        for child in level:
            scores[child] = scores.get(self._parents[child], 0.0) + self._log_confidences[child]
        open_ended = [node for node in level if self.token_ids[node] not in self._end_token_ids]
        best = sorted(open_ended, key=scores.__getitem__, reverse=True)[: budget.top_k]
        hopeful = [node for node in best if exp(scores[node]) >= self._p_expanded(budget)]
        if sum(exp(scores[node]) for node in hopeful) < budget.p_min:
            return []
        likely = _likeliest(scores, budget.num_draft_tokens)
        return [node for node in hopeful if node in likely]

    def _p_expanded(self, budget: DraftBudget) -> float:
        """Of the path to a node that is expanded.

        A drawn node is asked for all of `p_min`. Were a level worth what its nodes are together, what was drawn below
        an unlikely one could bring the level about, and with it likelier nodes in its place: whether it is proposed
        would depend on what was drawn below it, and what is rejected there would be tested too seldom.
        """
        return budget.p_min if self._is_drawn else budget.p_expanded

    def _next_of_chain(self, walk: Walk) -> list[int]:
        """The same for the commonest tree: this runs for each sequence between two levels."""
        likeliest = self._children[walk.to_expand[0]][:1]
        for child in likeliest:
            walk.scores[child] = 0.0
        return [child for child in likeliest if self.token_ids[child] not in self._end_token_ids]

    def _told(self, walked: Iterable[int], place: Mapping[int, int]) -> dict[int, DrawnCandidates]:
        """What was drawn below each proposed node, even if no child of it is proposed.

        That would depend on what was drawn: where only likely children are told of, the others are never tested.
        """
        expanded = dict.fromkeys(self._parents[node] for node in walked)
        return {place[node]: self._drafts[node] for node in expanded if node in place and node in self._drafts}

    def _depth_first(self, chosen: set[int]) -> Iterable[int]:
        """Ancestors first, and of siblings the likelier with all that hangs from it first."""
        stack = [ROOT]
        while stack:
            node = stack.pop()
            if node != ROOT:
                yield node
            stack += [child for child in reversed(self._children.get(node, [])) if child in chosen]

    def _keep_below(self, root: int, slots: dict[int, int]) -> list[int]:
        """Drop all but the nodes below `root`. Returns: their slots, in order."""
        self._forget_walks()
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
        nodes = [node for node in new if node != root]
        self._parents = [new[self._parents[node]] for node in nodes]
        self.token_ids = [self.token_ids[node] for node in nodes]
        self._log_confidences = [self._log_confidences[node] for node in nodes]
        return kept


def _likeliest(scores: Mapping[int, float], num: int) -> set[int]:
    """The `num` nodes with the highest scores; of equals the first ones."""
    return set(sorted(scores, key=scores.__getitem__, reverse=True)[:num])
