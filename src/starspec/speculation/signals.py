"""What a draft model says about its own proposal, and how far the target disagrees.

A proposal may state the draft model's likeliest tokens after each of its nodes. The target compares them with its own
logits. Both distributions are those of the models, at temperature 1 and without penalties or truncation: with greedy
sampling the target's own would be a single token, and the divergence infinite wherever the draft misses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.speculation.tree import ROOT, DraftTree, TopTokens
from starspec.speculation.verify import VerifyResult

NEVER: Final = -float("inf")  # log of the probability 0
MIN_PROB: Final = 1e-9  # of a draft: a token that it excludes diverges by some 20 nats, not infinitely


def top_tokens(logits: Tensor, num: int) -> list[TopTokens]:
    """The `num` likeliest tokens of each row [N, V].

    What they leave for all others is known from the result as exactly as they are themselves, however little it is.
    """
    top = logits.float().topk(min(num, logits.shape[-1]), dim=-1)
    others = logits.float().scatter(1, top.indices, NEVER).logsumexp(dim=-1, keepdim=True)
    likeliest = top.values.double()
    logprobs = likeliest - torch.cat([likeliest, others.double()], dim=1).logsumexp(dim=-1, keepdim=True)
    pairs = zip(top.indices.tolist(), logprobs.tolist(), strict=True)
    return [TopTokens(tuple(token_ids), tuple(logprobs)) for token_ids, logprobs in pairs]


def entropies(logits: Tensor) -> list[float]:
    """Entropy of the distribution of each row [N, V], in nats."""
    logprobs = logits.float().log_softmax(dim=-1)
    found: list[float] = (-(logprobs.exp() * logprobs.clamp_min(torch.finfo(torch.float32).min)).sum(dim=-1)).tolist()
    return found


def divergences(logits: Tensor, tops: Sequence[TopTokens]) -> list[float]:
    """KLD(target || draft) in nats, over the tokens that the draft states, and one bucket for all others.

    A bucket hides how target and draft differ inside of it, so this is never more than the exact divergence (the data
    processing inequality). It is the exact one if the draft states all tokens.

    Args:
        logits: [N, V], the target's.
        tops: N of the draft.
    """
    if not tops:
        return []
    width = max(len(each.token_ids) for each in tops)
    missing = [width - len(each.token_ids) for each in tops]
    token_ids = torch.tensor([(*each.token_ids, *[0] * num) for each, num in zip(tops, missing, strict=True)])
    logprobs = [(*each.logprobs, *[NEVER] * num) for each, num in zip(tops, missing, strict=True)]
    stated = torch.tensor(logprobs, dtype=torch.float64).exp()  # float32 would lose what is left for other tokens
    is_stated = torch.tensor([[True] * (width - num) + [False] * num for num in missing])
    theirs = logits.float().log_softmax(dim=-1).gather(1, token_ids.to(logits.device)).exp().cpu() * is_stated
    target = torch.cat([theirs, (1.0 - theirs.sum(dim=1, keepdim=True)).clamp_min(0.0)], dim=1).double()
    draft = torch.cat([stated, 1.0 - stated.sum(dim=1, keepdim=True)], dim=1).clamp_min(MIN_PROB)
    found: list[float] = torch.special.xlogy(target, target / draft).sum(dim=1).clamp_min(0.0).tolist()
    return found


def places_of(nodes: Sequence[int], tree: DraftTree) -> tuple[int, ...]:
    """The places of these nodes among all nodes of a tree that states log-probabilities.

    The node whose path is the likeliest has place 0. No node comes before its ancestors.
    """
    scores: list[float] = []
    for parent, logprob in zip(tree.parents, tree.logprobs, strict=True):
        scores.append(logprob + (0.0 if parent == ROOT else scores[parent]))
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    place = {node: index for index, node in enumerate(order)}
    return tuple(place[node] for node in nodes)


def path_divergences(tree: DraftTree, result: VerifyResult, logits: Tensor) -> tuple[float, ...]:
    """`divergences` along the path that the target took, up to the first rejected token.

    Args:
        logits: [N + 1, V] of the tree's root and nodes.
    Returns: one for each position whose likeliest tokens the draft states; a draft says nothing about the position
        after its last token.
    """
    if not tree.tops:
        return ()
    stated = [node for node in (ROOT, *result.accepted_nodes) if node in tree.tops]
    return tuple(divergences(logits[[node + 1 for node in stated]], [tree.tops[node] for node in stated]))
