"""Proposals for rejection sampling: draw the children of a node from the draft's own distribution, and record it.

The random numbers below a node are a function of the request's seed and of the tokens that lead to the node. So a hub
that drafts a node again draws the same children, and no two nodes share random numbers. This independence matters: what
was drawn below one node influences which other nodes are proposed, and must not influence what is drawn below them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import NamedTuple

from torch import Tensor

from starspec.sampling.adjust import adjust
from starspec.sampling.counts import TokenCounts
from starspec.sampling.noise import gumbel, stream_key
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.propose_coupled import HOTTEST, likely_support
from starspec.speculation.tree import MAX_SUPPORT, Drawing, DrawnCandidates

# differs from the target's streams: a draft that knew the target's random numbers would pass their test unfairly
DRAFT_STREAM = 0x44726166

_SEEDS = 2**63 - 1


class DrawnChildren(NamedTuple):
    """The children of one node."""

    draft: DrawnCandidates
    log_confidences: list[float]  # of each candidate; they only decide which ones grow first


def seed_after(seed: int, token_ids: Iterable[int]) -> int:
    """The seed of the random numbers after more tokens.

    seed_after(seed_after(seed, a), b) equals seed_after(seed, a + b).
    """
    for token_id in token_ids:
        seed = stream_key(seed, token_id) & _SEEDS
    return seed


def draw_children(
    logits: Tensor,
    sampling: SamplingSpec,
    position: int,
    counts: TokenCounts | None,
    *,
    num_tokens: int,
    draw_seed: int,
) -> DrawnChildren:
    """Draw children without replacement from the draft's own distribution of the token at `position`.

    That distribution applies the request's sampling parameters to the draft's logits. It is cut to its MAX_SUPPORT
    likeliest tokens and renormalised before anything is drawn. Rejection sampling is exact for any draft distribution,
    and this one fits into a message.

    Args:
        logits, sampling, position, counts: as for `propose_token`.
        num_tokens: children, at most.
        draw_seed: `seed_after` the tokens before `position`.
    Raises: as `next_token`.
    """
    adjusted = adjust(logits, sampling, position, counts)
    if not isfinite(largest := float(adjusted.max())):
        token_ids, probs = adjusted.argmax(0, keepdim=True), adjusted.new_ones(1)
    else:
        tokens = likely_support(adjusted, largest, sampling, MAX_SUPPORT)
        probs = tokens.scaled.softmax(0)
        token_ids, probs = tokens.token_ids[probs > 0], probs[probs > 0]
    perturbed = _perturbed(token_ids, probs, draw_seed, position)
    best = perturbed.topk(min(num_tokens, len(perturbed))).indices
    # As in `propose_coupled.py`: the target's logits are assumed to differ by Gumbel noise of scale 1.
    log_confidences = perturbed.mul(min(sampling.temperature, HOTTEST)).log_softmax(0)[best]
    candidates = tuple(token_ids[best].tolist())
    draft = DrawnCandidates(candidates, tuple(token_ids.tolist()), tuple(probs.tolist()), Drawing.WITHOUT_REPLACEMENT)
    return DrawnChildren(draft, log_confidences.tolist())


def _perturbed(token_ids: Tensor, probs: Tensor, seed: int, position: int) -> Tensor:
    """Gumbel top-k: the largest of these, in order, are distributed like tokens drawn without replacement."""
    return probs.log() + gumbel(stream_key(seed ^ DRAFT_STREAM, position), token_ids)
