"""The target's draw: the next token as a pure function of logits, law, position and earlier tokens.

    logits -> adjust (min_tokens, logit bias, penalties) -> temperature -> top-k -> top-p -> min-p -> draw

Greedy takes the argmax of the adjusted logits. Otherwise the draw is the Gumbel-max trick: the token with the largest
scaled logit + Gumbel noise is distributed as the softmax of the scaled logits, and as the noise is a function of
(seed, position, token), so is the token. All of it is float64 on one row. Of equals the lowest token id wins, always.

Ties with the k-th token stay in the top-k; top-p keeps the fewest most likely tokens whose mass reaches p (both as in
vLLM). Speed comes from leaving out what cannot win, never from approximating what can: `reference.py` says the same in
loops, and the tests hold the two together.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, isfinite, log
from typing import NamedTuple

import torch
from torch import Tensor

from starspec.speculation.adjust import adjust
from starspec.speculation.counts import TokenCounts
from starspec.speculation.law import TokenLaw
from starspec.speculation.noise import GUMBEL_MAX, GUMBEL_MIN, stream_key, to_gumbel, uniform

UNREACHABLE = GUMBEL_MIN - GUMBEL_MAX - 1e-6  # a scaled logit below this loses to the likeliest token's, always
FLOAT32_SLACK = 1e-3  # the float32 bounds in `draw` are below 100, so off by less than 1e-4
MASS_BITS = 40  # top-p counts mass in units of 2**-40 of the likeliest token's: integers, whose sums have no order


class Support(NamedTuple):
    """The tokens that may be drawn, ids ascending."""

    token_ids: Tensor  # [S] int64
    scaled: Tensor  # [S] float64: (logit - largest logit) / temperature, so 0 for the likeliest token

    def at(self, index: Tensor) -> Support:
        """The part of it at these places, [S'] int64, ascending."""
        return Support(self.token_ids.index_select(0, index), self.scaled.index_select(0, index))


def next_token(logits: Tensor, law: TokenLaw, position: int, counts: TokenCounts | None = None) -> int:
    """Draw the token at `position`.

    Args:
        logits: [V], the model's own, any float dtype and device; not changed.
        position: absolute index of the token to be drawn; the prompt's first token has index 0.
        counts: of all tokens before `position`; None will do if the law has neither penalties nor min_tokens.
    Returns: a token id. If the largest logit is infinite or NaN, so that there are no probabilities: the argmax.
    Raises: ValueError if the law needs counts and there are none.
    """
    adjusted = adjust(logits, law, position, counts)
    if law.is_greedy or not isfinite(largest := float(adjusted.max())):
        return int(adjusted.argmax())
    return draw(support(adjusted.sub(largest).div_(law.temperature), law), law.seed, position)


def propose_token(
    logits: Tensor, law: TokenLaw, position: int, counts: TokenCounts | None = None, num_candidates: int = 64
) -> int:
    """Guess what a target with similar logits draws at `position`: the same rule over the likeliest tokens only.

    Args: as next_token; no more than `num_candidates` >= 1 tokens are considered.
    Returns, raises: as next_token.
    """
    adjusted = adjust(logits, law, position, counts)
    if law.is_greedy or not isfinite(largest := float(adjusted.max())):
        return int(adjusted.argmax())
    candidates = adjusted.topk(min(num_candidates, len(adjusted))).indices.sort().values
    within = support(adjusted[candidates].sub_(largest).div_(law.temperature), law)
    return draw(Support(candidates[within.token_ids], within.scaled), law.seed, position)


def support(scaled: Tensor, law: TokenLaw) -> Support:
    """Keep the tokens that temperature, top-k, top-p and min-p leave, less those that no noise could make win.

    Args:
        scaled: [V] float64, the largest value 0.
    """
    floor = UNREACHABLE
    if 0 < law.top_k < len(scaled):
        floor = max(floor, float(scaled.topk(law.top_k).values[-1]))
    token_ids = (scaled >= floor).nonzero().squeeze(1)
    kept = Support(token_ids, scaled.index_select(0, token_ids))
    if law.top_p < 1.0:
        kept = _top_p(kept, law.top_p)
    if law.min_p > 0.0:
        kept = kept.at((kept.scaled >= log(law.min_p)).nonzero().squeeze(1))
    return kept


def draw(tokens: Support, seed: int, position: int) -> int:
    """The token with the largest scaled logit + Gumbel noise.

    Exact noise takes two float64 logarithms a token. As it never exceeds -log(uniform), one float32 logarithm tells
    for nearly every token that it cannot win; exact noise is computed for the few that are left.
    """
    uniforms = uniform(stream_key(seed, position), tokens.token_ids)
    bounds = tokens.scaled.to(torch.float32) - uniforms.to(torch.float32).log_()
    best = bounds.argmax(0, keepdim=True)
    to_beat = tokens.scaled[best] + to_gumbel(uniforms[best])
    contenders = (bounds >= float(to_beat) - FLOAT32_SLACK).nonzero().squeeze(1)
    perturbed = tokens.scaled[contenders] + to_gumbel(uniforms[contenders])
    return int(tokens.token_ids[contenders[perturbed.argmax()]])


def _top_p(tokens: Support, top_p: float) -> Support:
    """The fewest most likely tokens whose mass reaches `top_p`; among equals the lowest ids.

    Only tokens that can be among them are sorted: all those below a floor, were each as likely as the floor
    and its mass rounded up, would together have less than the mass 1 - `top_p` that may be left out.
    """
    total = int(_mass(tokens.scaled).sum())
    needed = ceil(Fraction(top_p) * total)
    unit = 2.0**-MASS_BITS
    floor = (1.0 - top_p) * total * unit / len(tokens.scaled) * (1.0 - 1e-9) - unit
    near = tokens.at((tokens.scaled >= log(max(floor, 1e-300))).nonzero().squeeze(1))
    order = near.scaled.sort(descending=True, stable=True).indices
    mass = _mass(near.scaled[order]).cumsum(0)
    num_kept = int(torch.searchsorted(mass, needed)) + 1
    return near.at(order[:num_kept].sort().values)


def _mass(scaled: Tensor) -> Tensor:
    """exp(scaled) in units of 2**-MASS_BITS, rounded to the nearest: int64, at most 2**MASS_BITS for each.

    At the offset, float64 has exactly this resolution: the addition rounds, and the difference of the bit
    patterns is the number of units.
    """
    offset = torch.tensor(2.0 ** (52 - MASS_BITS), dtype=torch.float64, device=scaled.device)
    return scaled.exp().add_(offset).view(torch.int64) - offset.view(torch.int64)
