"""The second acceptance rule: rejection sampling over draft probabilities, one candidate after the other.

At a node the draft has *drawn* candidates from its own law q (`drawing.py`). They are tested in the order in which
they were drawn against the target's law p, and each refusal takes away from p what the candidate stood for:

    accept c with probability min(1, p(c) / q(c)), else p <- norm(max(0, p - q)), and on to the next candidate

For one candidate this is Leviathan et al. (2022, arXiv 2211.17192, Algorithm 1) and Chen et al. (2023); for several
drawn with replacement it is SpecInfer's multi-step rule (2023, arXiv 2305.09781, Algorithm 2), for several without
replacement the one of recursive rejection sampling (Jeon et al. 2024, arXiv 2402.14160), where q loses each candidate
that was drawn. Candidates that no dice chose, such as EAGLE's likeliest k, would be accepted with probability p(c),
else p loses c: that is the law of asking whether the target's own draw is among them, which is what `verify.py` does.

What is emitted is distributed as p, whatever q is. It is not the token that plain decoding would have emitted with the
same seed: that is what coupled verification gives.

StarSD's Algorithm 2 tests each root-to-leaf path with fresh random numbers and keeps the longest one; that is biased
(tests/lossless/test_multiple_paths.py shows by how much), so `verify.py` walks child by child.

Which candidates were drawn must be told in full, and so must every node below which some were. What is left out
because of what it is would change what the rest stands for. A candidate that has no node in the tree can still be
accepted: then the walk ends with it.
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

# Each kind of dice has a stream of its own: a draft that knew the target's would no longer be tested by it.
ACCEPT_STREAM, RESIDUAL_STREAM = 0x41636370, 0x52657369


@dataclass(frozen=True, slots=True)
class Trial:
    """The tests at one node."""

    accept_probs: tuple[float, ...]  # of each candidate, if those before it were refused
    residual: Tensor  # [V] float64: the law of the token if all are refused


def try_candidates(target: Tensor, draft: DrawnCandidates) -> Trial:
    """The chances of each candidate, and what is left for the target's own token.

    Args:
        target: [V] float64, p.
    Raises: ValueError if a token is not the target's.
    """
    if max(draft.token_ids) >= len(target):
        raise ValueError(f"a drafted token is outside of the target's vocabulary of {len(target)}")
    p, q = target.clone(), target.new_zeros(len(target))
    q[list(draft.token_ids)] = p.new_tensor(draft.probs) / sum(draft.probs)
    accept_probs = []
    for candidate in draft.candidates:
        ratio = float(p[candidate] / q[candidate])
        accept_probs.append(min(1.0, ratio))
        if ratio >= 1.0:  # what follows is never reached
            return Trial((*accept_probs, *[0.0] * (len(draft.candidates) - len(accept_probs))), p)
        p = _normalized(p.sub(q).clamp_(min=0.0), otherwise=p)
        if draft.drawing is Drawing.WITHOUT_REPLACEMENT:
            q[candidate] = 0.0
            q = _normalized(q, otherwise=q)
    return Trial(tuple(accept_probs), p)


def probabilities(logits: Tensor, sampling: SamplingSpec, position: int, counts: TokenCounts | None = None) -> Tensor:
    """The law of the target's token: float64 [V], with sum 1. Args, raises: as next_token."""
    adjusted = adjust(logits, sampling, position, counts)
    probs = adjusted.new_zeros(len(adjusted))
    if sampling.is_greedy or not isfinite(largest := float(adjusted.max())):
        probs[adjusted.argmax()] = 1.0
        return probs
    tokens = support(adjusted.sub(largest).div_(sampling.temperature), sampling)
    probs[tokens.token_ids] = tokens.scaled.softmax(0)
    return probs


def rejection_token(target: Tensor, draft: DrawnCandidates, seed: int, position: int) -> int:
    """The token below a node: a candidate that passes, or one drawn from what is left.

    Args:
        target: [V] float64, p.
        seed: the request's.
        position: absolute index of the token.
    Raises: as try_candidates.
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
    """With sum 1. Where nothing is left, p and q were the same up to rounding: `otherwise` stands."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else otherwise
