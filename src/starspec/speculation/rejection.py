"""The rejection rule: accept or refuse the candidates of a node one after the other, by draft and target probabilities.

At a node the draft has *drawn* candidates from its own distribution q (`propose_rejection.py`). They are tested in the
order in which they were drawn, against the target's distribution p. Each refusal removes from p what the candidate
stood for:

    accept c with probability min(1, p(c) / q(c)), else p <- norm(max(0, p - q)), and go on to the next candidate

For one candidate this is Leviathan et al. (2022, arXiv 2211.17192, Algorithm 1) and Chen et al. (2023). For several
candidates drawn with replacement it is SpecInfer's multi-step rule (2023, arXiv 2305.09781, Algorithm 2). For several
drawn without replacement it is recursive rejection sampling (Jeon et al. 2024, arXiv 2402.14160), where q also loses
each candidate that was drawn. Candidates that were not drawn, such as EAGLE's likeliest k, would be accepted with
probability p(c), and p would lose c otherwise. That is the same distribution as asking whether the target's own draw is
among them, which is the coupled rule of `verify.py`.

The emitted token is distributed as p, whatever q is. It is not the token that plain decoding emits with the same seed;
coupled verification gives that one.

StarSD's Algorithm 2 tests each root-to-leaf path with fresh random numbers and keeps the longest one. That is biased
(tests/lossless/test_multiple_paths.py shows by how much), so `verify.py` walks child by child.

The draft must report all drawn candidates of a node, and every node below which some were drawn. To omit some of them
because of their values would change the distribution of the others. A candidate without a node in the tree can still be
accepted; the walk ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from starspec.sampling.adjust import adjust
from starspec.sampling.counts import TokenCounts
from starspec.sampling.draw import draw
from starspec.sampling.filters import Support, support
from starspec.sampling.noise import stream_bits, stream_key, to_uniform
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.tree import Drawing, DrawnCandidates

# Each kind of random number has its own stream: a draft that knew the target's random numbers would pass their test
# unfairly.
ACCEPT_STREAM, RESIDUAL_STREAM = 0x41636370, 0x52657369


@dataclass(frozen=True, slots=True)
class Trial:
    """The acceptance tests at one node."""

    accept_probs: tuple[float, ...]  # of each candidate, given that those before it were refused
    residual: Tensor  # [V] float64: the distribution of the token if all are refused


def try_candidates(target: Tensor, draft: DrawnCandidates) -> Trial:
    """The acceptance probability of each candidate, and the distribution that is left if all are refused.

    Args:
        target: [V] float64, p.
        draft: the candidates and q.
    Raises: ValueError if a drafted token is outside the target's vocabulary.
    """
    if max(draft.token_ids) >= len(target):
        raise ValueError(f"a drafted token is outside the target's vocabulary of {len(target)} tokens")
    p, q = target.clone(), target.new_zeros(len(target))
    q[list(draft.token_ids)] = p.new_tensor(draft.probs) / sum(draft.probs)
    accept_probs = []
    for candidate in draft.candidates:
        ratio = float(p[candidate] / q[candidate])
        accept_probs.append(min(1.0, ratio))
        if ratio >= 1.0:  # later candidates are never tested
            return Trial((*accept_probs, *[0.0] * (len(draft.candidates) - len(accept_probs))), p)
        p = _normalized(p.sub(q).clamp_(min=0.0), otherwise=p)
        if draft.drawing is Drawing.WITHOUT_REPLACEMENT:
            q[candidate] = 0.0
            q = _normalized(q, otherwise=q)
    return Trial(tuple(accept_probs), p)


def probabilities(
    logits: Tensor,
    sampling: SamplingSpec,
    position: int,
    counts: TokenCounts | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """The distribution of the target's token: float64 [V], with sum 1. Args, raises: as `next_token`."""
    adjusted = adjust(logits, sampling, position, counts, allowed)
    probs = adjusted.new_zeros(len(adjusted))
    if sampling.is_greedy or not isfinite(largest := float(adjusted.max())):
        probs[adjusted.argmax()] = 1.0
        return probs
    tokens = support(adjusted.sub(largest).div_(sampling.temperature), sampling)
    probs[tokens.token_ids] = tokens.scaled.softmax(0)
    return probs


def rejection_token(target: Tensor, draft: DrawnCandidates, seed: int, position: int) -> int:
    """The token below a node: the first candidate that is accepted, or a token drawn from the residual.

    Args:
        target: [V] float64, p.
        draft: the candidates and q.
        seed: the request's.
        position: absolute index of the token.
    Raises: as `try_candidates`.
    """
    trial = try_candidates(target, draft)
    keys = stream_key(seed ^ ACCEPT_STREAM, position)
    uniforms = to_uniform(stream_bits(keys, torch.arange(len(draft.candidates)))).tolist()
    for candidate, uniform, accept_prob in zip(draft.candidates, uniforms, trial.accept_probs, strict=True):
        if uniform < accept_prob:
            return candidate
    left = trial.residual.nonzero().squeeze(1)
    return draw(Support(left, trial.residual[left].log()), seed ^ RESIDUAL_STREAM, position)


def _normalized(weights: Tensor, otherwise: Tensor) -> Tensor:
    """Scale weights to sum 1. If all are 0, p and q were equal up to rounding, and `otherwise` is returned."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else otherwise
