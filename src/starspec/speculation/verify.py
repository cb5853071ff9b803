"""Verification: which draft tokens are right. One of the three files to read first.

Why this is lossless. At every position the target's next token is a pure function of its own logits, the request's
law and seed, and the position (`sampling.next_token`): greedy or sampled, there is nothing left to chance. So there
is one sequence of tokens that the target would say alone. A draft tree is a guess at it. The walk starts at the last
committed token, draws *the target's own* token there, and asks whether a child carries it:

        committed ── 0 "the" ── 1 "cat" ── 3 "sat"      draws: "the"   -> go to node 0
                             └─ 2 "dog"                        "dog"   -> go to node 2
                                                               "barks" -> no child: stop

It emits every token it drew ("the", "dog", "barks"), never a token that it was given. The draft only decides how far
the walk comes: the logits of node 2 are the target's own after "... the dog", which is what it would have computed
alone. So whatever the draft says - stale, random, malicious - no emitted token changes, and a tree needs no rule that
a chain does not. This is acceptance by common random numbers (Daliri, Musco, Suresh 2024, arXiv 2408.07978).

Children that a draft drew from probabilities, which come with the tree, are tested by them instead (`rejection.py`):
the same walk, where each token is still distributed as the target's. A tree has such children only if the target asked
for rejection sampling.

What is asked of the caller: logits of a node depend on its ancestors and the committed tokens alone (`cache/` and
`models/` see to that), and the emitted tokens are cut at eos, stop and max_tokens afterwards (`target/`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from starspec.sampling.argmax import argmaxes, is_on_cpu
from starspec.sampling.counts import TokenCounts
from starspec.sampling.draw import next_token, next_tokens
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.rejection import probabilities, rejection_token
from starspec.speculation.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What the target said to one tree."""

    accepted_nodes: tuple[int, ...]  # the walked path, ancestors first
    token_ids: tuple[int, ...]  # their tokens, then the target's own last one: one more than nodes

    @property
    def num_accepted(self) -> int:
        """Accepted tokens; excludes the target's own last one."""
        return len(self.accepted_nodes)

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of the tree's forward that decided the tokens, one each: the root's is 0, that of node i is i + 1."""
        return (0, *(node + 1 for node in self.accepted_nodes))


def verify_tree(
    tree: DraftTree, logits: Tensor, sampling: SamplingSpec, prefix_len: int, counts: TokenCounts | None = None
) -> VerifyResult:
    """Walk one tree with the target's draws. Decides once for each emitted token, however large the tree is.

    Args:
        logits: [N + 1, V], the target's: row 0 after the committed tokens, row i + 1 after node i.
        prefix_len: number of committed tokens, so that the first draw is at this position.
        counts: of the committed tokens; as for next_token. Not changed.
    Raises: ValueError if a token of the tree's drafts is outside of the target's vocabulary.
    """
    assert logits.shape[0] == tree.num_draft_tokens + 1, "one row of logits for the root and for each node"

    def target_token(node: int, path: list[int]) -> int:
        seen = counts.with_path(path) if counts else None
        position = prefix_len + len(path)
        draft = tree.drafts.get(node)
        if draft is None:
            return next_token(logits[node + 1], sampling, position, seen)
        probs = probabilities(logits[node + 1], sampling, position, seen)
        return rejection_token(probs, draft, sampling.seed, position)

    return _walk(tree, target_token)


def verify_trees(
    trees: Sequence[DraftTree],
    logits: Tensor,
    samplings: Sequence[SamplingSpec],
    prefix_lens: Sequence[int],
    counts: Sequence[TokenCounts | None],
) -> list[VerifyResult]:
    """verify_tree for the B trees of one forward, with one argmax over all rows that a plain argmax decides.

    On accelerators all rows of simple laws are drawn at once, too: some dozen launches for each token would cost as
    much as a draft layer.

    Args:
        logits: [sum of (N_b + 1), V], the trees' rows one after the other.
        laws, prefix_lens, counts: B of each.
    """
    parts = torch.split(logits, [tree.num_draft_tokens + 1 for tree in trees])
    cases = [_Case(*each) for each in zip(trees, parts, samplings, prefix_lens, strict=True)]
    argmaxes = iter(_argmaxes([case.logits for case in cases if case.sampling.is_plain_argmax]))
    draws = iter(_draws([case for case in cases if case.is_drawn_at_once]))
    verdicts = []
    for case, seen in zip(cases, counts, strict=True):
        if case.sampling.is_plain_argmax:
            verdicts.append(_walk_all(case.tree, next(argmaxes)))
        elif case.is_drawn_at_once:
            verdicts.append(_walk_all(case.tree, next(draws)))
        else:
            verdicts.append(verify_tree(*case, seen))
    return verdicts


class _Case(NamedTuple):
    """One of the trees of a forward."""

    tree: DraftTree
    logits: Tensor  # [N + 1, V]
    sampling: SamplingSpec
    prefix_len: int

    @property
    def is_drawn_at_once(self) -> bool:
        """Whether the target's token is drawn after every node, wherever the walk goes."""
        sampling = self.sampling
        has_simple_sampling = not (
            sampling.is_greedy or sampling.adjusts_logits or sampling.top_k > 0 or sampling.top_p < 1.0
        )
        return has_simple_sampling and not is_on_cpu(self.logits) and not self.tree.drafts


def _walk(tree: DraftTree, target_token: Callable[[int, list[int]], int]) -> VerifyResult:
    """Follow the target through the tree. `target_token(node, path)` draws at a node; `path` leads to it."""
    node, nodes, path = ROOT, list[int](), list[int]()
    while True:
        token = target_token(node, path)
        child = tree.children.get((node, token))
        path.append(token)
        if child is None:
            return VerifyResult(tuple(nodes), tuple(path))
        nodes.append(child)
        node = child


def _walk_all(tree: DraftTree, token_ids: Sequence[int]) -> VerifyResult:
    """Walk where the target's token is known after the root and after each node."""
    return _walk(tree, lambda node, _path: token_ids[node + 1])


def _draws(cases: Sequence[_Case]) -> list[list[int]]:
    """What the target draws after the root and after each node of every tree."""
    if not cases:
        return []
    samplings = [case.sampling for case in cases for _ in range(len(case.logits))]
    positions = [case.prefix_len + depth for case in cases for depth in (0, *case.tree.depths)]
    drawn = iter(next_tokens(torch.cat([case.logits for case in cases]), samplings, positions))
    return [list(islice(drawn, len(case.logits))) for case in cases]


def _argmaxes(parts: Sequence[Tensor]) -> list[list[int]]:
    """The argmax of every row of every part [T_b, V], lowest index among equals."""
    if not parts:
        return []
    indices = iter(argmaxes(torch.cat(list(parts))))
    return [list(islice(indices, len(part))) for part in parts]
