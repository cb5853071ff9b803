"""The target's draw in the slowest and most obvious way: Python numbers, one loop for each rule.

No request is served from here. The tests compare the fast modules with it, and it shares no code with them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from math import exp, inf, log, log1p

from starspec.sampling.spec import SamplingSpec


def splitmix64(state: int, index: int) -> int:
    """Output `index` of the splitmix64 generator that starts at `state`; 0 is the first output, -1 the one before."""
    z = (state + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def uniform(seed: int, position: int, token_id: int) -> float:
    """The uniform of one token at one position, in (0, 1)."""
    return _uniform(_bits(seed, position, token_id))


def gumbel(seed: int, position: int, token_id: int) -> float:
    """Standard Gumbel noise of one token.

    For a block of 64 neighbours, one output gives the least exponential and the token that has it.
    """
    shared = _bits(seed, position, -1 - token_id // 64)
    exponential = -log1p(-_uniform(shared)) / 64
    if shared % 64 != token_id % 64:
        exponential += -log1p(-uniform(seed, position, token_id))
    return -log(exponential)


def _bits(seed: int, position: int, index: int) -> int:
    return splitmix64(splitmix64(splitmix64(seed, 0), position), index)


def _uniform(bits: int) -> float:
    return ((bits >> 12) + 0.5) / 2**52


def adjust(
    logits: Sequence[float],
    sampling: SamplingSpec,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    allowed: Collection[int] | None = None,
) -> list[float]:
    """What a request makes of logits: grammar, min_tokens, bad words, bias, penalties. Args: allowed: None = all."""
    adjusted = []
    may_end = allowed is not None and all(token_id in sampling.end_token_ids for token_id in allowed)
    for token_id, logit in enumerate(logits):
        value = float(logit)
        if len(output_ids) < sampling.min_tokens and token_id in sampling.end_token_ids and not may_end:
            value = -inf
        if allowed is not None and token_id not in allowed:
            value = -inf
        for word in sampling.bad_words:
            if (*output_ids, token_id)[-len(word) :] == word:
                value = -inf
        value += sampling.logit_bias.get(token_id, 0.0)
        if token_id in prompt_ids or token_id in output_ids:
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        value -= sampling.frequency_penalty * output_ids.count(token_id)
        value -= sampling.presence_penalty * (token_id in output_ids)
        adjusted.append(value)
    return adjusted


def support(adjusted: Sequence[float], sampling: SamplingSpec) -> dict[int, float]:
    """Token id -> scaled logit, for the tokens that temperature, top-k, top-p and min-p leave."""
    largest = max(adjusted)
    scaled = {token_id: (value - largest) / sampling.temperature for token_id, value in enumerate(adjusted)}
    likeliest_first = sorted(scaled, key=lambda token_id: (-scaled[token_id], token_id))
    if sampling.top_k:
        kth = scaled[likeliest_first[: sampling.top_k][-1]]
        likeliest_first = [token_id for token_id in likeliest_first if scaled[token_id] >= kth]
    if sampling.top_p < 1:
        mass = {token_id: round(exp(scaled[token_id]) * 2**40) for token_id in likeliest_first}
        needed = Fraction(sampling.top_p) * sum(mass.values())
        kept: list[int] = []
        for token_id in likeliest_first:
            if needed > 0:
                kept.append(token_id)
                needed -= mass[token_id]
        likeliest_first = kept
    if sampling.min_p:
        likeliest_first = [token_id for token_id in likeliest_first if scaled[token_id] >= log(sampling.min_p)]
    return {token_id: scaled[token_id] for token_id in sorted(likeliest_first)}


def probabilities(adjusted: Sequence[float], sampling: SamplingSpec) -> list[float]:
    """The distribution of the next token: a draw follows it. The temperature must be above 0."""
    weights = {token_id: exp(value) for token_id, value in support(adjusted, sampling).items()}
    total = sum(weights.values())
    return [weights.get(token_id, 0.0) / total for token_id in range(len(adjusted))]


def next_token(
    logits: Sequence[float],
    sampling: SamplingSpec,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    allowed: Collection[int] | None = None,
) -> int:
    """The token that follows prompt and output. Args: allowed: by the grammar; None = all."""
    adjusted = adjust(logits, sampling, prompt_ids, output_ids, allowed)
    if sampling.temperature == 0 or max(adjusted) == -inf:  # the second: no token may be drawn
        return adjusted.index(max(adjusted))
    position = len(prompt_ids) + len(output_ids)
    perturbed = {
        token_id: value + gumbel(sampling.seed, position, token_id)
        for token_id, value in support(adjusted, sampling).items()
    }
    return min(perturbed, key=lambda token_id: (-perturbed[token_id], token_id))
