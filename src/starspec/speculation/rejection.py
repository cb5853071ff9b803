"""The second acceptance rule: rejection sampling over draft probabilities, one candidate after the other.

At a node the draft has *drawn* candidates from its own law q. They are tested in the order in which they were drawn
against the target's law p, and each refusal takes away from p what the candidate stood for:

    accept c with probability min(1, p(c) / q(c)), else p <- norm(max(0, p - q)), and on to the next candidate

For one candidate this is Leviathan et al. (2022, arXiv 2211.17192, Algorithm 1) and Chen et al. (2023); for several
drawn with replacement it is SpecInfer's multi-step rule (2023, arXiv 2305.09781, Algorithm 2), for several without
replacement the one of recursive rejection sampling (Jeon et al. 2024, arXiv 2402.14160), where q loses each candidate
that was drawn. Candidates that a rule picked, such as EAGLE's likeliest k, come from laws that give each of them
all: accept c with probability p(c), else p loses c.

What is emitted is distributed as p, whatever q is. It is not the token that plain decoding would have emitted with the
same seed: that is what coupled verification gives (`verify.py`).

StarSD's Algorithm 2 tests each root-to-leaf path with fresh random numbers and keeps the longest one; that is biased
(tests/lossless/test_multiple_paths.py shows by how much), so the walk here goes child by child.

Which candidates were drawn must be told in full. A candidate that was left out because of what it is would have
changed what the others stand for. One that has no node in the tree can still be accepted: then the walk ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite

import torch
from torch import Tensor

from starspec.speculation.adjust import adjust
from starspec.speculation.counts import TokenCounts
from starspec.speculation.law import TokenLaw
from starspec.speculation.noise import stream_bits, stream_key, to_gumbel, to_uniform
from starspec.speculation.sampling import support
from starspec.speculation.tree import ROOT, DraftTree
from starspec.speculation.verify import TreeVerdict

# Each kind of dice has a stream of its own: a draft that knew the target's would no longer be tested by it.
DRAFT_STREAM, ACCEPT_STREAM, RESIDUAL_STREAM = 0x44726166, 0x41636370, 0x52657369


class Drawing(Enum):
    """How a draft drew its candidates. A rule is right for one way only."""

    WITH_REPLACEMENT = "with replacement"
    WITHOUT_REPLACEMENT = "without replacement"
    PICKED = "picked"  # no dice: the same draft picks the same candidates


@dataclass(frozen=True, slots=True)
class NodeDraft:
    """What a draft drew below one node. Exactly sparse: tokens that are not listed have probability 0.

    Raises: ValueError if it is no law, or if these candidates cannot have been drawn from it that way.
    """

    candidates: tuple[int, ...]  # in the order in which they were drawn, all of them
    token_ids: tuple[int, ...]  # different; none if the candidates were picked
    probs: tuple[float, ...]  # of `token_ids`, positive, with sum 1 up to rounding
    drawing: Drawing

    @classmethod
    def picked(cls, candidates: tuple[int, ...]) -> NodeDraft:
        """Candidates that no dice chose."""
        return cls(candidates, (), (), Drawing.PICKED)

    def __post_init__(self) -> None:
        if min((*self.token_ids, *self.candidates), default=0) < 0:
            raise ValueError("token ids are not negative")
        is_repeated = len(set(self.candidates)) < len(self.candidates)
        if is_repeated and self.drawing is not Drawing.WITH_REPLACEMENT:
            raise ValueError("a candidate came twice: that is drawing with replacement")
        if self.drawing is Drawing.PICKED:
            if self.token_ids or self.probs:
                raise ValueError("picked candidates have no probabilities: they were not drawn")
            return
        if len(self.token_ids) != len(self.probs) or len(set(self.token_ids)) != len(self.token_ids):
            raise ValueError(f"{len(self.probs)} probabilities of {len(set(self.token_ids))} different tokens")
        if not all(0.0 < prob <= 1.0 + 1e-6 for prob in self.probs) or abs(sum(self.probs) - 1.0) > 1e-6:
            raise ValueError(f"probabilities must be positive with sum 1, not {sum(self.probs)}")
        if not set(self.candidates) <= set(self.token_ids):
            raise ValueError("a candidate has no probability: it cannot have been drawn")


@dataclass(frozen=True, slots=True)
class Trial:
    """The tests at one node."""

    accept_probs: tuple[float, ...]  # of each candidate, if those before it were refused
    residual: Tensor  # [V] float64: the law of the token if all are refused


def draw_candidates(
    token_ids: Tensor, probs: Tensor, num: int, drawing: Drawing, seed: int, position: int
) -> tuple[int, ...]:
    """Draw from a draft's sparse law.

    Args:
        token_ids, probs: [S] each, int64 and float64; probs > 0.
        num: candidates; without replacement at most S come.
    Returns: in the order in which they were drawn.
    Raises: ValueError if candidates are to be picked: that takes no dice.
    """
    if drawing is Drawing.PICKED:
        raise ValueError("picked candidates are not drawn")
    keys = stream_key(seed ^ DRAFT_STREAM, position)
    if drawing is Drawing.WITHOUT_REPLACEMENT:  # Gumbel top-k: the same law as drawing one after the other
        perturbed = probs.log() + to_gumbel(stream_bits(keys, token_ids))
        return tuple(token_ids[perturbed.topk(min(num, len(perturbed))).indices].tolist())
    uniforms = to_uniform(stream_bits(keys, torch.arange(num, device=probs.device)))
    cumulative = probs.cumsum(0)
    return tuple(token_ids[torch.searchsorted(cumulative, uniforms * cumulative[-1], right=True)].tolist())


def try_candidates(target: Tensor, draft: NodeDraft) -> Trial:
    """The chances of each candidate, and what is left for the target's own token.

    Args:
        target: [V] float64, p.
    Raises: ValueError if a token is not the target's.
    """
    if max((*draft.token_ids, *draft.candidates), default=0) >= len(target):
        raise ValueError(f"a drafted token is outside of the target's vocabulary of {len(target)}")
    p, q = target.clone(), target.new_zeros(len(target))
    if draft.drawing is not Drawing.PICKED:
        q[list(draft.token_ids)] = p.new_tensor(draft.probs) / sum(draft.probs)
    accept_probs = []
    for candidate in draft.candidates:
        if draft.drawing is Drawing.PICKED:
            q = torch.zeros_like(q)
            q[candidate] = 1.0
        ratio = float(p[candidate] / q[candidate])
        accept_probs.append(min(1.0, ratio))
        if ratio >= 1.0:  # what follows is never reached
            return Trial((*accept_probs, *[0.0] * (len(draft.candidates) - len(accept_probs))), p)
        p = _normalized(p.sub(q).clamp_(min=0.0), otherwise=p)
        if draft.drawing is Drawing.WITHOUT_REPLACEMENT:
            q[candidate] = 0.0
            q = _normalized(q, otherwise=q)
    return Trial(tuple(accept_probs), p)


def verify_tree_by_rejection(
    tree: DraftTree,
    drafts: Mapping[int, NodeDraft],
    logits: Tensor,
    law: TokenLaw,
    prefix_len: int,
    counts: TokenCounts | None = None,
) -> TreeVerdict:
    """Walk one tree, testing the children of each node in the order in which they were drawn.

    Args:
        drafts: what was drawn below a node, of every node that has children; ROOT is -1.
        logits: [N + 1, V], the target's: row 0 after the committed tokens, row i + 1 after node i.
        prefix_len: number of committed tokens, so that the first token is drawn at this position.
        counts: of the committed tokens; as for next_token. Not changed.
    Raises: ValueError if a node has a child that was not drawn.
    """
    _check_drawn(tree, drafts)
    node, nodes, path = ROOT, list[int](), list[int]()
    while True:
        position = prefix_len + len(path)
        seen = counts.with_path(path) if counts else None
        target = probabilities(logits[node + 1], law, position, seen)
        token = _decide(target, drafts.get(node), law.seed, position)
        path.append(token)
        child = tree.children.get((node, token))
        if child is None:
            return TreeVerdict(tuple(nodes), tuple(path))
        nodes.append(child)
        node = child


def probabilities(logits: Tensor, law: TokenLaw, position: int, counts: TokenCounts | None = None) -> Tensor:
    """The law of the target's token: float64 [V], with sum 1. Args, raises: as next_token."""
    adjusted = adjust(logits, law, position, counts)
    probs = adjusted.new_zeros(len(adjusted))
    if law.is_greedy or not isfinite(largest := float(adjusted.max())):
        probs[adjusted.argmax()] = 1.0
        return probs
    tokens = support(adjusted.sub(largest).div_(law.temperature), law)
    probs[tokens.token_ids] = tokens.scaled.softmax(0)
    return probs


def _decide(target: Tensor, draft: NodeDraft | None, seed: int, position: int) -> int:
    """The token at a position: a candidate that passes, or one drawn from what is left.

    A leaf's token is drawn from the target's law itself. A token that is drawn although a candidate carries it is
    not accepted: its candidate was refused, so its residual is 0.
    """
    residual = target
    if draft is not None:
        trial = try_candidates(target, draft)
        keys = stream_key(seed ^ ACCEPT_STREAM, position)
        uniforms = to_uniform(stream_bits(keys, torch.arange(len(draft.candidates)))).tolist()
        for candidate, uniform, accept_prob in zip(draft.candidates, uniforms, trial.accept_probs, strict=True):
            if uniform < accept_prob:
                return candidate
        residual = trial.residual
    noise = to_gumbel(
        stream_bits(stream_key(seed ^ RESIDUAL_STREAM, position), torch.arange(len(residual), device=residual.device))
    )
    return int((residual.log() + noise).argmax())


def _normalized(weights: Tensor, otherwise: Tensor) -> Tensor:
    """With sum 1. Where nothing is left, p and q were the same up to rounding: `otherwise` stands."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else otherwise


def _check_drawn(tree: DraftTree, drafts: Mapping[int, NodeDraft]) -> None:
    for (parent, token_id), node in tree.children.items():
        if parent not in drafts or token_id not in drafts[parent].candidates:
            raise ValueError(f"node {node} carries token {token_id}, which was not drawn below node {parent}")
