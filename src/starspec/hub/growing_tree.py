"""How one sequence's draft tree grows: which nodes to forward, to propose, and to prepare (EAGLE-2)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence, Set
from math import exp
from operator import itemgetter
from typing import NamedTuple

from starspec.hub.tree_nodes import TreeNodes
from starspec.speculation.budget import DraftBudget
from starspec.speculation.tree import ROOT, DraftTree, DrawnCandidates


class Expansion:
    """EAGLE-2's expansion phase below one node, as far as the tree is known. It continues when more is known.

    An expanded node stays as it is until a verdict, so no depth is looked at twice.
    """

    def __init__(self, budget: DraftBudget, start: int) -> None:
        self.budget = budget
        self.scores: dict[int, float] = {}  # nodes below `start` with their log-confidences, depth by depth
        self.to_expand = [start]  # nodes of the depth that was reached
        self.num_steps = 0  # depths that are complete


class Outcome(NamedTuple):
    """A possible outcome of a verification: the node that would be the new root, or an ancestor of such nodes."""

    neg_logprob: float  # minus the log of the probability of the path to the node: the likeliest sorts first
    node: int
    depth: int


class OutcomeQueue:
    """Outcomes of one proposal for which the next proposal may still miss nodes, likeliest first.

    Args:
        budget: of the next proposal.
        ends: nodes at which accepted draft tokens may end: the root and the proposed nodes.
    """

    def __init__(self, budget: DraftBudget, ends: Set[int]) -> None:
        self.budget = budget
        self.ends = ends
        self.outcomes = [Outcome(0.0, ROOT, 0)]
        self._expansions: dict[int, Expansion] = {}

    def expansion(self, outcome: Outcome) -> Expansion:
        """The expansion below an outcome's node."""
        expansion = self._expansions.get(outcome.node)
        if expansion is None:
            expansion = self._expansions[outcome.node] = Expansion(self.budget, outcome.node)
        return expansion


class GrowingTree(TreeNodes):
    """A tree that grows depth by depth, by EAGLE-2's rule.

    Nodes to expand and to propose are computed from the root. So the whole proposal is a function of the committed
    tokens and the budget alone, whatever was drafted before. A part of a chain that is sent early is its beginning.

    Args:
        end_token_ids: nothing comes after these.
        is_drawn: children are drawn, for rejection sampling; else they are the likeliest tokens.
    """

    _missing: tuple[DraftBudget, list[int]] | None  # the last answer of `to_forward`, while it is true
    _root_expansion: Expansion | None  # the last one from the root
    _outcome_queue: OutcomeQueue | None  # the last one

    def __init__(self, end_token_ids: Iterable[int] = (), *, is_drawn: bool = False) -> None:
        self._end_token_ids = frozenset(end_token_ids)
        self._is_drawn = is_drawn
        super().__init__()

    def copy(self) -> GrowingTree:
        """Another tree with the same nodes, which grows on its own."""
        other = GrowingTree(self._end_token_ids, is_drawn=self._is_drawn)
        self._copy_nodes_to(other)
        return other

    def num_known(self, budget: DraftBudget) -> int:
        """Nodes that would be proposed now."""
        return len(self.proposed(budget)) if self.is_rooted else 0

    def to_forward(self, budget: DraftBudget) -> list[int]:
        """Nodes to expand next; [ROOT] at first, [] when the proposal cannot change any more."""
        if self._missing is None or self._missing[0] is not budget:  # this is asked several times a draft step
            self._missing = budget, self._continue(self._from_root(budget))
        return self._missing[1]

    def best(self, budget: DraftBudget) -> DraftTree:
        """The likeliest nodes. An ancestor is at least as likely as its descendants, so they are connected.

        Returns: a tree whose likeliest path comes first, so that its slots mostly need not be moved.
        """
        order, has_logprobs = self.proposed(budget), budget.has_logprobs and not self.is_looked_up
        if budget.is_chain and not (self._drafts or has_logprobs or budget.num_stated):
            return DraftTree.chain([self.token_ids[node] for node in order])
        index_of = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
        return DraftTree(
            tuple(self.token_ids[node] for node in order),
            tuple(index_of[self._parents[node]] for node in order),
            self._drafts_to_send(self._scores(budget), index_of) if self._drafts else {},
            tuple(self._log_confidences[node] for node in order) if has_logprobs else (),
            {index_of[node]: top for node, top in self._tops.items() if node in index_of} if budget.num_stated else {},
        )

    def proposed(self, budget: DraftBudget) -> list[int]:
        """The nodes of `best`, in its order (EAGLE-2's reranking phase)."""
        likely: Mapping[int, float] = self._scores(budget)
        if budget.p_proposed:
            likely = {node: score for node, score in likely.items() if exp(score) >= budget.p_proposed}
        if budget.is_chain:
            return list(likely)[: budget.num_draft_tokens]
        return list(self._depth_first(_likeliest(likely, budget.num_draft_tokens)))

    def to_prepare(self, budget: DraftBudget, proposed: Sequence[int], num_nodes: int) -> list[int]:
        """Nodes to expand ahead of a verdict: what the next proposal may miss, likeliest outcomes first.

        A verdict ends at ROOT or at a proposed node, with one more token. If that token is a node here, it will be the
        new root, and the next proposal grows below it. The depth of a node in that proposal does not matter: each depth
        that is known already saves the same time, if the verdict leads to it.

            proposed    a ── b ── c            b is accepted, c is not: the target emits e.
                        │    └─── e ── f       Then f is worth as much as e: the probability of the path to e.
                        └─── d

        This must be fast: it runs for each sequence before each draft step that runs ahead, and a request may wait for
        it. So it stops when it has enough nodes, continues earlier expansions, and drops complete outcomes.

        Args:
            budget: of the proposal in verification; the next one is supposed to have the same.
            proposed: nodes of that proposal, or the beginning of one; since then, the tree may have grown.
            num_nodes: at most so many.
        Returns: nodes in order of their depth; [] when there is nothing to prepare.
        """
        queue = self._outcomes_of(budget, frozenset((ROOT, *proposed)))
        outcomes = queue.outcomes
        chosen: list[tuple[int, int]] = []  # depths and nodes
        index = 0
        while index < len(outcomes) and len(chosen) < num_nodes:
            outcome = outcomes[index]
            if outcome.node in queue.ends and outcome.node in self._children:
                self._add_children(outcomes.pop(index), outcomes)
                continue
            expansion = queue.expansion(outcome)
            missing = self._continue(expansion)
            if not missing:
                del outcomes[index]
                continue
            chosen += [(outcome.depth + expansion.num_steps, node) for node in missing]
            index += 1
        return [node for _, node in sorted(chosen[:num_nodes], key=itemgetter(0))]

    def _nodes_changed(self) -> None:
        self._missing = self._root_expansion = self._outcome_queue = None

    def _node_expanded(self) -> None:
        self._missing = None

    def _from_root(self, budget: DraftBudget) -> Expansion:
        expansion = self._root_expansion
        if expansion is None or (expansion.budget is not budget and expansion.budget != budget):
            expansion = self._root_expansion = Expansion(budget, ROOT)
        return expansion

    def _scores(self, budget: DraftBudget) -> Mapping[int, float]:
        """Log-confidences of the nodes that the expansion from the root has reached."""
        expansion = self._from_root(budget)
        self._continue(expansion)
        return expansion.scores

    def _outcomes_of(self, budget: DraftBudget, ends: Set[int]) -> OutcomeQueue:
        queue = self._outcome_queue
        if queue is None or queue.budget != budget or queue.ends != ends:
            queue = self._outcome_queue = OutcomeQueue(budget, ends)
        return queue

    def _add_children(self, end: Outcome, outcomes: list[Outcome]) -> None:
        """Insert the children of an outcome's node. Nothing is likelier than its ancestors, so all come behind it."""
        for child in self._children[end.node]:
            if self.token_ids[child] not in self._end_token_ids:
                insort(outcomes, Outcome(end.neg_logprob - self._log_confidences[child], child, end.depth + 1))

    def _continue(self, expansion: Expansion) -> list[int]:
        """Expand as far as nodes are known. Returns: nodes that must be expanded to go further; [] at the end."""
        budget, known = expansion.budget, self._children
        next_depth = self._next_depth if budget.top_k_spec.needs_logprobs else self._next_of_chain
        while expansion.to_expand and expansion.num_steps < budget.num_steps:
            unknown = [node for node in expansion.to_expand if node not in known]
            if unknown:
                return unknown
            if expansion.num_steps and self._is_unsure(expansion):
                expansion.to_expand = []
                break
            expansion.to_expand = next_depth(expansion)
            expansion.num_steps += 1
        return []

    def _is_unsure(self, expansion: Expansion) -> bool:
        """Whether a chain ends before its next token, because the drafter is not sure of it (AdaEDL)."""
        budget = expansion.budget
        return budget.is_chain and self._entropies.get(expansion.to_expand[0], 0.0) > budget.max_entropy

    def _next_depth(self, expansion: Expansion) -> list[int]:
        """Nodes to expand at the next depth: EAGLE-2's rule, without nodes that cannot matter.

        Nothing is likelier than its ancestors. A node outside the likeliest `num_draft_tokens` so far has therefore no
        descendant in the proposal, and is not expanded. The proposal is the same, and it is complete after fewer draft
        steps where the drafter is unsure. Such a node still counts towards `p_min`: otherwise the proposal would be
        another.
        """
        budget, scores = expansion.budget, expansion.scores
        children = [child for node in expansion.to_expand for child in self._children[node][: budget.top_k]]
        for child in children:
            scores[child] = scores.get(self._parents[child], 0.0) + self._log_confidences[child]
        open_ended = [node for node in children if self.token_ids[node] not in self._end_token_ids]
        best = sorted(open_ended, key=scores.__getitem__, reverse=True)[: budget.top_k]
        hopeful = [node for node in best if exp(scores[node]) >= self._p_expanded(budget)]
        if sum(exp(scores[node]) for node in hopeful) < budget.p_min:
            return []
        likely = _likeliest(scores, budget.num_draft_tokens)
        return [node for node in hopeful if node in likely]

    def _p_expanded(self, budget: DraftBudget) -> float:
        """The least probability of the path to a node that is expanded.

        A drawn node needs all of `p_min` by itself. Suppose that the nodes of a depth counted together. Then tokens
        drawn below an unlikely node could cause one more depth, and likelier nodes there would take its place. So what
        was drawn below the node would decide whether it is proposed, and tokens that are rejected would be tested too
        seldom.
        """
        return budget.p_min if self._is_drawn else budget.p_expanded

    def _next_of_chain(self, expansion: Expansion) -> list[int]:
        """The same for a chain, which is the most frequent tree: this runs for each sequence between draft steps."""
        likeliest = self._children[expansion.to_expand[0]][:1]
        for child in likeliest:
            expansion.scores[child] = 0.0
        return [child for child in likeliest if self.token_ids[child] not in self._end_token_ids]

    def _drafts_to_send(self, nodes: Iterable[int], index_of: Mapping[int, int]) -> dict[int, DrawnCandidates]:
        """What was drawn below each proposed node, even if none of its children is proposed.

        If only likely children were reported, then the report would depend on what was drawn, and the other children
        would never be tested.
        """
        expanded = dict.fromkeys(self._parents[node] for node in nodes)
        return {index_of[node]: self._drafts[node] for node in expanded if node in index_of and node in self._drafts}

    def _depth_first(self, chosen: set[int]) -> Iterable[int]:
        """Ancestors first. Among siblings, the likelier comes first with all its descendants."""
        stack = [ROOT]
        while stack:
            node = stack.pop()
            if node != ROOT:
                yield node
            stack += [child for child in reversed(self._children.get(node, [])) if child in chosen]


def _likeliest(scores: Mapping[int, float], num: int) -> set[int]:
    """The `num` nodes with the highest scores; of equals the first ones."""
    return set(sorted(scores, key=scores.__getitem__, reverse=True)[:num])
