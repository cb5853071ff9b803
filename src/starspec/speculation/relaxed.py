"""Relaxed verification (DSD, section 2.3): accept what both models nearly agree on. It is lossy.

The target's distribution P_t after a node is softened towards the draft's, P_d, before the node is verified:

    P~(x) = M w(x) / sum of w,   w(x) = P_t(x)^(1 - tau) P_d(x)^tau        (equation 8)

for the tokens x that the draft states and that are not *key*. M is what P_t gives them together. All other tokens keep
P_t. So the sum stays 1, no token vanishes, and a token that the target excludes stays excluded. A stated token is key
by equation 7 if one of these holds:

    H_d(x) / H_t(x) > lambda_1      how much more it surprises the draft than the target; H = -log P, at least MIN_NATS
    |P_t(x) - P_d(x)| > lambda_2
    NormMatch < lambda_3            the sum of min(P_t, P_d) over all stated tokens, so this holds for all or for none

Both distributions are those of the models, at temperature 1, before penalties and truncation. What a request's sampling
parameters do comes afterwards, as it would to P_t. P~ is a function of the two distributions alone. It must not depend
on which tokens were drafted: rejection sampling keeps a distribution only if the draws do not choose it.

docs/relaxed.md names what the paper leaves open, and what was chosen.
"""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from starspec.speculation.acceptance import MIN_NATS, KeyThresholds, Relaxation
from starspec.speculation.tree import TopTokens


class Evidence(NamedTuple):
    """What decides which of S stated tokens are key."""

    ratios: Tensor  # [S]: H_d / H_t
    differences: Tensor  # [S]: |P_t - P_d|
    norm_match: float

    def is_key(self, thresholds: KeyThresholds) -> Tensor:
        """[S]: whether each token is key."""
        if self.norm_match < thresholds.lambda_3:
            return torch.ones_like(self.ratios, dtype=torch.bool)
        return (self.ratios > thresholds.lambda_1) | (self.differences > thresholds.lambda_2)


def evidence(target: Tensor, draft: Tensor) -> Evidence:
    """Compare two models at one position.

    Args:
        target, draft: [S], the log-probabilities of the same tokens.
    """
    surprise_ratios = draft.neg().clamp_min(MIN_NATS) / target.neg().clamp_min(MIN_NATS)
    p, q = target.exp(), draft.exp()
    # if both are infinitely surprised, they agree
    ratios = torch.where(target == draft, torch.ones_like(p), surprise_ratios)
    return Evidence(ratios, (p - q).abs(), float(torch.minimum(p, q).sum()))


def soften(logits: Tensor, top: TopTokens, relaxation: Relaxation) -> Tensor | None:
    """Move the target's logits after one node towards what the draft states.

    Args:
        logits: [V], the model's own, any float dtype and device; not changed.
        top: the draft's likeliest tokens there, distinct and below V.
    Returns: float64 [V] on the same device; None if nothing is softened, since all stated tokens are key, or too few.
    """
    row = logits.to(torch.float64, copy=True)
    norm = float(row.logsumexp(0))
    if not (top.token_ids and isfinite(norm)):
        return None
    token_ids = torch.tensor(top.token_ids, device=row.device)
    target = row[token_ids].cpu() - norm  # so few numbers are faster there than a kernel launch
    draft = torch.tensor(top.logprobs, dtype=torch.float64)
    is_soft = target.isfinite() & draft.isfinite() & ~evidence(target, draft).is_key(relaxation.thresholds)
    if int(is_soft.sum()) < 2:  # one token alone keeps its probability
        return None
    own, mixed = target[is_soft], target[is_soft].lerp(draft[is_soft], relaxation.tau)
    row[token_ids[is_soft.to(row.device)]] = (mixed + (own.logsumexp(0) - mixed.logsumexp(0)) + norm).to(row.device)
    return row
