"""How a draft draws the children of a node from its own law, and says what it drew: for rejection sampling.

The dice below a node are a function of the request's seed and of the tokens that lead there. So a hub that drafts a
node again draws the same children, and no two nodes share dice: which nodes are proposed depends on what was drawn
below others, and must not depend on what was drawn below them.
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

DRAFT_STREAM = 0x44726166  # not the target's: a draft that knew its dice would no longer be tested by them

_SEEDS = 2**63 - 1


class DrawnChildren(NamedTuple):
    """Children of one node."""

    draft: DrawnCandidates
    log_confidences: list[float]  # of each candidate: which ones to grow first, no more


def dice_after(seed: int, token_ids: Iterable[int]) -> int:
    """The seed of the dice after some more tokens: dice_after(dice_after(seed, a), b) is dice_after(seed, a + b)."""
    for token_id in token_ids:
        seed = stream_key(seed, token_id) & _SEEDS
    return seed


def draw_children(
    logits: Tensor, sampling: SamplingSpec, position: int, counts: TokenCounts | None, *, num_tokens: int, dice: int
) -> DrawnChildren:
    """Draw children without replacement from the draft's own law of the token at `position`.

    That law is the request's own over the draft's logits, cut to its MAX_SUPPORT likeliest tokens and renormalised
    before anything is drawn: any law is as exact, and this one fits into a message.

    Args: as propose_token; at most `num_tokens` children.
        dice: `dice_after` the tokens before `position`.
    Raises: as next_token.
    """
    adjusted = adjust(logits, sampling, position, counts)
    if not isfinite(largest := float(adjusted.max())):
        token_ids, probs = adjusted.argmax(0, keepdim=True), adjusted.new_ones(1)
    else:
        tokens = likely_support(adjusted, largest, sampling, MAX_SUPPORT)
        probs = tokens.scaled.softmax(0)
        token_ids, probs = tokens.token_ids[probs > 0], probs[probs > 0]
    perturbed = _perturbed(token_ids, probs, dice, position)
    best = perturbed.topk(min(num_tokens, len(perturbed))).indices
    # as in `proposing`: the target's logits are taken to differ by Gumbel noise of scale 1
    log_confidences = perturbed.mul(min(sampling.temperature, HOTTEST)).log_softmax(0)[best]
    candidates = tuple(token_ids[best].tolist())
    draft = DrawnCandidates(candidates, tuple(token_ids.tolist()), tuple(probs.tolist()), Drawing.WITHOUT_REPLACEMENT)
    return DrawnChildren(draft, log_confidences.tolist())


def _perturbed(token_ids: Tensor, probs: Tensor, seed: int, position: int) -> Tensor:
    """Gumbel top-k: the largest of these, in order, are distributed as tokens drawn one after the other."""
    return probs.log() + gumbel(stream_key(seed ^ DRAFT_STREAM, position), token_ids)
