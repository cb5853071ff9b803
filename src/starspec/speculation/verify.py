"""Verification: which draft tokens the target accepts. One of the three files to read first.

Why this is lossless. The target's next token is a pure function of its own logits, the request's sampling parameters
with their seed, and the position (`sampling/draw.py`). This holds for greedy decoding and for sampling: the seed fixes
all randomness. So there is exactly one sequence that the target would emit without drafts. A draft tree is a prediction
of it. The verifier walks through the tree from the last committed token. At each node it draws *the target's own* token
and looks for a child with that token:

    committed ── 0 "the" ── 1 "cat" ── 3 "sat"      draws: "the"   -> go to node 0
                         └─ 2 "dog"                        "dog"   -> go to node 2
                                                           "barks" -> no child: stop

It emits every token that it drew ("the", "dog", "barks"). No emitted token comes from the draft; the draft only decides
how far one forward gets. The logits of node 2 are the target's own after "... the dog", the same as in plain decoding.
So a draft that is stale, random or malicious cannot change an emitted token, and a tree needs no rule beyond the
chain's. This is acceptance by common random numbers (Daliri, Musco, Suresh 2024, arXiv 2408.07978), here called
*coupled*.

An acceptance rule (`acceptance.py`) is a function from a node's logits to the token after it; the walk is the same for
all rules. The coupled rule applies where a draft predicted the children. The rejection rule (`rejection.py`) applies
where a draft drew them from probabilities that the tree carries. Its tokens follow the target's distribution, but
differ from plain decoding with the same seed. A tree has drawn children only if the target asked for rejection
sampling.

A request may ask for relaxed verification (`relaxed.py`), which is lossy. The same rule then also gives a token for the
softened logits of a node. Where the children were predicted, that token is taken only if it is a child and the target's
own token is not: so each token that differs from the target's own saves a forward, and is counted. Where they were
drawn, the softened distribution takes the place of the target's.

A request may have a grammar (`sampling/constraint.py`). It masks the logits of each node that the walk reaches, before
everything else that the request's sampling parameters do: the masked logits are the target's own, by every rule.

The caller guarantees two things. The logits of a node depend only on its ancestors and the committed tokens (`cache/`
and `models/` see to it). The emitted tokens are cut at eos, stop and max_tokens afterwards (`engine/`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from starspec.sampling.argmax import argmaxes, is_on_cpu
from starspec.sampling.constraint import Constraint
from starspec.sampling.counts import TokenCounts
from starspec.sampling.draw import next_token, next_tokens
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import Relaxation
from starspec.speculation.rejection import probabilities, rejection_token
from starspec.speculation.relaxed import soften
from starspec.speculation.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The target's answer to one tree."""

    accepted_nodes: tuple[int, ...]  # the accepted path, ancestors first
    token_ids: tuple[int, ...]  # the accepted tokens, then one more that the target drew itself
    relaxed: tuple[int, ...] = ()  # indices of the accepted tokens that the rule refuses for logits not softened

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens, without the target's own last token."""
        return len(self.accepted_nodes)

    @property
    def rows(self) -> tuple[int, ...]:
        """The logits rows that decided the tokens, one each: row 0 for the root, row i + 1 for node i."""
        return (0, *(node + 1 for node in self.accepted_nodes))

    def cut(self, num_tokens: int) -> VerifyResult:
        """The result without the tokens behind the first `num_tokens`, at least 1."""
        relaxed = tuple(index for index in self.relaxed if index < num_tokens)
        return VerifyResult(self.accepted_nodes[: num_tokens - 1], self.token_ids[:num_tokens], relaxed)


def verify_tree(
    tree: DraftTree,
    logits: Tensor,
    sampling: SamplingSpec,
    prefix_len: int,
    counts: TokenCounts | None = None,
    relaxation: Relaxation | None = None,
    constraint: Constraint | None = None,
) -> VerifyResult:
    """Verify one tree by walking through it with the target's draws.

    It makes one decision for each emitted token, however large the tree is.

    Args:
        tree: the proposal.
        logits: [N + 1, V], the target's own: row 0 after the committed tokens, row i + 1 after node i.
        sampling: the request's sampling parameters.
        prefix_len: number of committed tokens, which is the position of the first draw.
        counts: of the committed tokens, as for `next_token`; not changed.
        relaxation: None = strict.
        constraint: the grammar behind the committed tokens; None = any text.
    Raises: ValueError if a drawn draft token is outside the target's vocabulary.
    """
    case = _Case(tree, logits, sampling, prefix_len, counts, relaxation, constraint)
    return _walk(case, case.own_token)


def verify_trees(
    trees: Sequence[DraftTree],
    logits: Tensor,
    samplings: Sequence[SamplingSpec],
    prefix_lens: Sequence[int],
    counts: Sequence[TokenCounts | None],
    relaxations: Sequence[Relaxation | None] = (),
    constraints: Sequence[Constraint | None] = (),
) -> list[VerifyResult]:
    """`verify_tree` for the B trees of one forward, with one argmax over the rows of all greedy requests.

    On accelerators, all rows with simple sampling parameters are also drawn at once: a dozen kernel launches for each
    token would cost as much as a draft step. Softened rows are drawn one by one.

    Args:
        trees: B proposals.
        logits: [sum of (N_b + 1), V], the rows of the trees one after the other.
        samplings, prefix_lens, counts: B of each, as for `verify_tree`.
        relaxations: B, as for `verify_tree`; () = all are strict.
        constraints: B, as for `verify_tree`; () = all may have any text.
    Returns: B results.
    """
    parts = torch.split(logits, [tree.num_draft_tokens + 1 for tree in trees])
    nothing = [None] * len(trees)
    told = zip(
        trees, parts, samplings, prefix_lens, counts, relaxations or nothing, constraints or nothing, strict=True
    )
    cases = [_Case(*each) for each in told]
    argmaxes = iter(_argmaxes([case.logits for case in cases if case.is_plain_argmax]))
    draws = iter(_draws([case for case in cases if case.is_drawn_at_once]))
    results = []
    for case in cases:
        if case.is_plain_argmax:
            results.append(_walk_all(case, next(argmaxes)))
        elif case.is_drawn_at_once:
            results.append(_walk_all(case, next(draws)))
        else:
            results.append(_walk(case, case.own_token))
    return results


class _Case(NamedTuple):
    """One tree of a forward."""

    tree: DraftTree
    logits: Tensor  # [N + 1, V]
    sampling: SamplingSpec
    prefix_len: int
    counts: TokenCounts | None
    relaxation: Relaxation | None
    constraint: Constraint | None

    @property
    def is_plain_argmax(self) -> bool:
        """Whether the target's token is the argmax of its logits, wherever the walk leads."""
        return self.sampling.is_plain_argmax and self.constraint is None

    @property
    def is_drawn_at_once(self) -> bool:
        """Whether the target's token is drawn after every node in one go, wherever the walk leads."""
        sampling = self.sampling
        has_simple_sampling = not (
            sampling.is_greedy or sampling.adjusts_logits or sampling.top_k > 0 or sampling.top_p < 1.0
        )
        is_free = not self.tree.drafts and self.constraint is None
        return has_simple_sampling and is_free and not is_on_cpu(self.logits)

    def own_token(self, node: int, path: list[int]) -> int:
        """The token after a node and its path, by the strict rule."""
        return self._token(self.logits[node + 1], node, path)

    def relaxed_token(self, node: int, path: list[int], own: int) -> int:
        """The token after a node, if the strict rule gives `own`."""
        is_drawn, top = node in self.tree.drafts, self.tree.tops.get(node)
        if self.relaxation is None or top is None or not (is_drawn or self._lacks(node, own)):
            return own
        softened = soften(self.logits[node + 1], top, self.relaxation)
        if softened is None:
            return own
        token = self._token(softened, node, path)
        if is_drawn:
            return token
        is_soft = bool(softened[token] != self.logits[node + 1][token])  # a key token keeps its logit, and is strict
        return token if is_soft and not self._lacks(node, token) else own

    def _token(self, row: Tensor, node: int, path: list[int]) -> int:
        seen = self.counts.with_path(path) if self.counts else None
        allowed = None if self.constraint is None else self.constraint.allowed(path)
        position = self.prefix_len + len(path)
        draft = self.tree.drafts.get(node)
        if draft is None:
            return next_token(row, self.sampling, position, seen, allowed)
        probs = probabilities(row, self.sampling, position, seen, allowed)
        return rejection_token(probs, draft, self.sampling.seed, position)

    def _lacks(self, node: int, token: int) -> bool:
        return (node, token) not in self.tree.children


TargetToken = Callable[[int, list[int]], int]
"""(node, its path) -> the token after it, by the strict rule."""


def _walk(case: _Case, own_token: TargetToken) -> VerifyResult:
    """Follow the target through the tree."""
    tree = case.tree
    assert len(case.logits) == tree.num_draft_tokens + 1, "need one row of logits for the root and one for each node"
    node, nodes, path, relaxed = ROOT, list[int](), list[int](), list[int]()
    while True:
        own = own_token(node, path)
        token = case.relaxed_token(node, path, own)
        child = tree.children.get((node, token))
        path.append(token)
        if child is None:
            return VerifyResult(tuple(nodes), tuple(path), tuple(relaxed))
        if token != own:
            relaxed.append(len(nodes))
        nodes.append(child)
        node = child


def _walk_all(case: _Case, token_ids: Sequence[int]) -> VerifyResult:
    """Walk through a tree if the target's own token after the root and after each node is known."""
    return _walk(case, lambda node, _path: token_ids[node + 1])


def _draws(cases: Sequence[_Case]) -> list[list[int]]:
    """The target's draws after the root and after each node of every tree."""
    if not cases:
        return []
    samplings = [case.sampling for case in cases for _ in range(len(case.logits))]
    positions = [case.prefix_len + depth for case in cases for depth in (0, *case.tree.depths)]
    drawn = iter(next_tokens(torch.cat([case.logits for case in cases]), samplings, positions))
    return [list(islice(drawn, len(case.logits))) for case in cases]


def _argmaxes(parts: Sequence[Tensor]) -> list[list[int]]:
    """The argmax of every row of every part [T_b, V]; of equal logits the lowest index wins."""
    if not parts:
        return []
    indices = iter(argmaxes(torch.cat(list(parts))))
    return [list(islice(indices, len(part))) for part in parts]
