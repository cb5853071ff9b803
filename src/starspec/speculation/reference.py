"""Proposals and verification in the slowest and most obvious way: Python numbers, one loop for each rule.

No request is served from here. The tests compare the fast modules with it, and it shares no code with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import exp, inf, log

from starspec.sampling.reference import adjust, gumbel, next_token, support
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import MIN_NATS, KeyThresholds
from starspec.speculation.tree import ROOT, DraftTree


def propose_tokens(
    logits: Sequence[float],
    sampling: SamplingSpec,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    num_tokens: int,
    num_candidates: int,
) -> list[tuple[int, float]]:
    """Tokens and the probability of each that a target draws it, likeliest first.

    The target's logits differ from these by Gumbel noise.
    """
    adjusted = adjust(logits, sampling, prompt_ids, output_ids)
    order = sorted(range(len(adjusted)), key=lambda token_id: (-adjusted[token_id], token_id))
    known = {token_id: adjusted[token_id] for token_id in order if adjusted[token_id] > -inf}
    if not known:  # no token may be drawn
        return [(order[0], 1.0)]
    if sampling.temperature > 0:
        position = len(prompt_ids) + len(output_ids)
        candidates = sorted(list(known)[: max(num_tokens, num_candidates)])
        inside = support([known[token_id] for token_id in candidates], sampling)
        allowed = {candidates[index] for index in inside}
        known = {
            each: known[each] + sampling.temperature * gumbel(sampling.seed, position, each) for each in candidates
        }
        first = max(allowed, key=lambda token_id: known[token_id])
        known = {each: value - (each not in allowed) for each, value in known.items()}
        known[first] = max(known.values())
        order = sorted(known, key=lambda token_id: (-known[token_id], token_id != first, token_id))
    total = sum(exp(value - max(known.values())) for value in known.values())
    found = [token_id for token_id in order if token_id in known][:num_tokens]
    return [(token_id, exp(known[token_id] - max(known.values())) / total) for token_id in found]


def verify_tree(
    tree: DraftTree,
    logits: Sequence[Sequence[float]],
    sampling: SamplingSpec,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    grammar: Callable[[Sequence[int]], Collection[int]] | None = None,
) -> list[int]:
    """The tokens that the target emits for one tree. Row 0 of the logits belongs to the root, row i + 1 to node i.

    Args:
        grammar: output tokens -> the tokens that may follow them; None = any.
    """
    emitted: list[int] = []
    node = ROOT
    while True:
        output = [*output_ids, *emitted]
        allowed = None if grammar is None else grammar(output)
        emitted.append(next_token(logits[node + 1], sampling, prompt_ids, output, allowed))
        nodes = [i for i, parent in enumerate(tree.parents) if parent == node and tree.token_ids[i] == emitted[-1]]
        if not nodes:
            return emitted
        node = nodes[0]


def is_key(p: float, q: float, norm_match: float, thresholds: KeyThresholds) -> bool:
    """DSD's equation 7, for a token with the probabilities p and q of target and draft."""
    draft_nats, target_nats = (max(MIN_NATS, -log(each) if each > 0 else inf) for each in (q, p))
    return (
        (p != q and draft_nats / target_nats > thresholds.lambda_1)
        or abs(p - q) > thresholds.lambda_2
        or norm_match < thresholds.lambda_3
    )


def soften(
    target: Sequence[float], stated: Mapping[int, float], tau: float, thresholds: KeyThresholds
) -> Sequence[float]:
    """DSD's equation 8.

    Args:
        target: the target's probability of each token.
        stated: the draft's probabilities of some tokens.
    Returns: the softened probability of each token.
    """
    norm_match = sum(min(target[each], prob) for each, prob in stated.items())
    soft = [
        each
        for each, prob in stated.items()
        if target[each] > 0 and prob > 0 and not is_key(target[each], prob, norm_match, thresholds)
    ]
    mass = sum(target[each] for each in soft)
    weights = {each: target[each] ** (1 - tau) * stated[each] ** tau for each in soft}
    return [
        mass * weights[each] / sum(weights.values()) if each in weights else prob for each, prob in enumerate(target)
    ]
