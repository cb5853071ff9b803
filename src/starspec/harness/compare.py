"""Two decodings of the same requests: where do they first diverge, and how close were the logits?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from starspec.harness.decode import PREFILL_CHUNK, Job, JobResult
from starspec.models.runner import BatchRunner, Segment
from starspec.sampling.adjust import adjust
from starspec.sampling.filters import support
from starspec.sampling.noise import gumbel, stream_key
from starspec.sampling.spec import SamplingSpec

NEAR_TIE_STEPS = 4  # a gap of at most so many rounding steps of the logits' dtype is a near-tie
NEAR_TIE = f"near-tie: within {NEAR_TIE_STEPS} rounding steps of the target's largest logit"
NUM_CONTENDERS = 64  # most likely tokens that are searched for the runner-up of a draw


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer first differs from its reference."""

    prompt: str
    position: int  # index of the token within the answer
    expected: int | None  # token id; None: the reference had ended
    found: int | None  # None: this answer had ended
    logit_gap: float | None  # reference logits: expected token's minus found token's; None if not recorded
    # by how much, in logits, rounding must change the scores, noise included; None if not recorded
    rounding: float | None
    near_tie_gap: float | None  # the near-tie bound for these logits; None if not recorded
    is_near_tie: bool | None  # whether a few rounding steps can swap the two tokens; None if not recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How some answers compare with their references."""

    num_answers: int
    num_identical: int
    num_tokens: int  # of the references
    num_bitwise: int | None  # tokens, of those before any divergence, decided by bitwise equal logits; None: unknown
    num_compared: int  # tokens before any divergence
    sum_partial: float  # over the answers: share of the reference's tokens before the divergence
    num_explained: int  # answers that differ, from a near-tie on
    first: Divergence | None  # of the first answer, in the order of the requests, that differs

    @property
    def exact_match_rate(self) -> float:
        """Share of answers that are token for token the same."""
        return self.num_identical / self.num_answers if self.num_answers else 1.0

    @property
    def partial_match_rate(self) -> float:
        """Share of the reference's tokens before the first divergence, averaged over the answers (as in EqSpec)."""
        return self.sum_partial / self.num_answers if self.num_answers else 1.0

    @property
    def is_identical(self) -> bool:
        return self.num_identical == self.num_answers

    @property
    def is_bitwise(self) -> bool:
        """Whether the logits behind every compared token were bitwise equal."""
        return self.num_bitwise == self.num_compared

    def plus(self, other: Comparison) -> Comparison:
        """The union of both, with this one's answers first."""
        known = self.num_bitwise is not None and other.num_bitwise is not None
        return Comparison(
            num_answers=self.num_answers + other.num_answers,
            num_identical=self.num_identical + other.num_identical,
            num_tokens=self.num_tokens + other.num_tokens,
            num_bitwise=(self.num_bitwise or 0) + (other.num_bitwise or 0) if known else None,
            num_compared=self.num_compared + other.num_compared,
            sum_partial=self.sum_partial + other.sum_partial,
            num_explained=self.num_explained + other.num_explained,
            first=self.first or other.first,
        )


def compare(
    jobs: Sequence[Job],
    expected: Sequence[JobResult],
    found: Sequence[JobResult],
    expected_logits: Sequence[Sequence[Tensor]] | None = None,
    found_logits: Sequence[Sequence[Tensor]] | None = None,
) -> Comparison:
    """Compare answers with their references, token by token.

    Args:
        expected_logits: for each reference, the logits [V] that decided each token; None = not recorded. A token
            without logits counts as different bits.
        found_logits: the same for each answer. Bits are compared if both are given.
    """
    divergences: list[Divergence] = []
    num_bitwise = num_compared = 0
    sum_partial = 0.0
    for index, (job, reference, answer) in enumerate(zip(jobs, expected, found, strict=True)):
        at = first_difference(reference.token_ids, answer.token_ids)
        length = len(reference.token_ids) if at is None else at
        num_compared += length
        sum_partial += share_before(at, reference.token_ids)
        if expected_logits is not None and found_logits is not None:
            pairs = zip(expected_logits[index][:length], found_logits[index][:length], strict=False)
            num_bitwise += sum(_same_bits(one, other) for one, other in pairs)
        if at is not None:
            logits = expected_logits[index][at : at + 1] if expected_logits else ()
            divergences.append(divergence(job, reference, answer, at, logits[0] if len(logits) else None))
    has_bits = expected_logits is not None and found_logits is not None
    return Comparison(
        num_answers=len(jobs),
        num_identical=len(jobs) - len(divergences),
        num_tokens=sum(len(each.token_ids) for each in expected),
        num_bitwise=num_bitwise if has_bits else None,
        num_compared=num_compared,
        sum_partial=sum_partial,
        num_explained=sum(each.is_near_tie is True for each in divergences),
        first=divergences[0] if divergences else None,
    )


def share_before(at: int | None, expected: Sequence[int]) -> float:
    """Share of a reference's tokens before the first difference (EqSpec, section 4.1: its partial match)."""
    return 1.0 if at is None else at / max(1, len(expected))


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """The first index at which two sequences differ; their shared length if one is a prefix; None if they are equal."""
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return index
    return None if len(expected) == len(found) else min(len(expected), len(found))


def decision_gap(logits: Tensor, sampling: SamplingSpec, position: int) -> float:
    """By how much, in logits, the drawn token beat the runner-up: what it takes to change the token.

    Args:
        logits: [V], the target's own.
        sampling: without penalties and min_tokens.
        position: absolute index of the drawn token.
    Returns: infinity if no other token could be drawn. With a temperature, only the most likely tokens are searched
        for the runner-up.
    """
    adjusted = adjust(logits, sampling, position, None)
    if sampling.is_greedy:
        best = adjusted.topk(2).values
        return float(best[0] - best[1])
    likely = adjusted.topk(min(NUM_CONTENDERS, len(adjusted))).indices
    scaled = (adjusted - adjusted.max()) / sampling.temperature
    tokens = support(scaled, sampling)
    inside = torch.isin(tokens.token_ids, likely)
    scores = tokens.scaled[inside] + gumbel(stream_key(sampling.seed, position), tokens.token_ids[inside])
    if len(scores) < 2:
        return float("inf")
    best = scores.topk(2).values
    return float(best[0] - best[1]) * sampling.temperature


def is_near_tie(logits: Tensor, sampling: SamplingSpec, position: int) -> bool:
    """Whether a few rounding steps could change the drawn token, as kernels that round differently may.

    Args: as decision_gap.
    """
    return decision_gap(logits, sampling, position) <= near_tie_gap(logits)


def gap_to(logits: Tensor, sampling: SamplingSpec, position: int, token_id: int) -> float:
    """By how much, in logits, the drawn token beat the given one.

    Args: as decision_gap.
    Returns: infinity for a token that could not be drawn.
    """
    adjusted = adjust(logits, sampling, position, None)
    if sampling.is_greedy:
        return float(adjusted.max() - adjusted[token_id])
    tokens = support((adjusted - adjusted.max()) / sampling.temperature, sampling)
    scores = tokens.scaled + gumbel(stream_key(sampling.seed, position), tokens.token_ids)
    own = scores[tokens.token_ids == token_id]
    return float(scores.max() - own[0]) * sampling.temperature if len(own) else float("inf")


def rounding_to_draw(logits: Tensor, sampling: SamplingSpec, position: int, token_id: int) -> float:
    """By how much, in logits, rounding must change the scores so that this token is drawn; 0 for the drawn token.

    Rounding must lift the token by its gap to each token ahead of it, noise included. With top-k or top-p, rounding can
    also move the edge of the kept set: it can push a token that is ahead out of it, or let this token in.

    Args: as decision_gap.
    """
    if not sampling.has_filters:
        return gap_to(logits, sampling, position, token_id)
    adjusted = adjust(logits, sampling, position, None)
    scaled = (adjusted - adjusted.max()) / sampling.temperature
    kept = support(scaled, sampling).token_ids
    inside_by = adjusted - adjusted[kept].min()
    rivals = torch.cat([kept, kept.new_tensor([token_id])])
    scores = (scaled[rivals] + gumbel(stream_key(sampling.seed, position), rivals)) * sampling.temperature
    to_pass = torch.minimum(scores[:-1] - scores[-1], inside_by[kept].to(scores.dtype))
    return max(0.0, float(to_pass.max()), -float(inside_by[token_id]))


def near_tie_gap(logits: Tensor) -> float:
    """`NEAR_TIE_STEPS` rounding steps in logits: spacings of the dtype at the largest logit."""
    _, exponent = math.frexp(float(logits.abs().max()))
    return NEAR_TIE_STEPS * torch.finfo(logits.dtype).eps * 2.0 ** (exponent - 1)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def divergence(job: Job, reference: JobResult, answer: JobResult, at: int, logits: Tensor | None) -> Divergence:
    """Describe one divergence.

    Args:
        at: index of the first token that differs.
        logits: [V], of the reference at that token; None = not recorded, or the reference had ended.
    """
    expected = reference.token_ids[at] if at < len(reference.token_ids) else None
    found = answer.token_ids[at] if at < len(answer.token_ids) else None
    gap = rounding = bound = is_tie = None
    if logits is not None:
        bound, is_tie = near_tie_gap(logits), False
        if expected is not None and found is not None:
            position = len(job.prompt_token_ids) + at
            # of both tokens: logits that were computed again may prefer the other one
            rounding = max(rounding_to_draw(logits, job.sampling, position, each) for each in (expected, found))
            is_tie = rounding <= bound
            gap = float(logits[expected].double() - logits[found].double())
    return Divergence(job.name, at, expected, found, gap, rounding, bound, is_tie)


def divergences(
    runner: BatchRunner, jobs: Sequence[Job], expected: Sequence[JobResult], found: Sequence[JobResult]
) -> list[Divergence]:
    """One for each answer that differs from its reference.

    Args:
        runner: of the target. It computes the logits at the divergence again, in a forward of one token.
    Effects: runs a forward over prompt and answer for each; leases and frees a row.
    """
    differing = []
    for job, reference, answer in zip(jobs, expected, found, strict=True):
        at = first_difference(reference.token_ids, answer.token_ids)
        if at is not None:
            logits = None
            if at < len(reference.token_ids):
                logits = next_logits(runner, [*job.prompt_token_ids, *reference.token_ids[:at]])
            differing.append(divergence(job, reference, answer, at, logits))
    return differing


def next_logits(runner: BatchRunner, token_ids: Sequence[int]) -> Tensor:
    """The target's logits [V] after these tokens, in a batch of one. Effects: leases and frees a row."""
    row = runner.cache.lease()
    try:
        for start in range(0, len(token_ids) - 1, PREFILL_CHUNK):
            chunk = token_ids[start : min(start + PREFILL_CHUNK, len(token_ids) - 1)]
            runner.forward([Segment(row, chunk, 0)])
            runner.cache.append(row, len(chunk))
        return runner.forward([Segment(row, token_ids[-1:], 1)]).logits[0]
    finally:
        runner.cache.free(row)


def divergence_lines(who: str, first: Divergence | None, num_different: int, num_explained: int) -> list[str]:
    """Lines of text about answers that differ from their references; none if no answer does.

    Args:
        who: whose answers.
        first: of the first answer that differs.
        num_explained: answers that differ from a near-tie on.
    """
    if first is None:
        return []
    gap = "unknown" if first.logit_gap is None else f"{first.logit_gap:.6g}"
    kind = "a near-tie" if first.is_near_tie else "no near-tie"
    bound = "" if first.near_tie_gap is None else f" ({kind}: those are within {first.near_tie_gap:.3g})"
    decided = "" if first.rounding is None else f", decided by {first.rounding:.3g}"
    where = f"first divergence in prompt {first.prompt} at token {first.position}"
    what = f"{_token(first.expected)} expected, {_token(first.found)} found, logit gap {gap}{decided}{bound}"
    several = [f"  {num_different} answers differ, {num_explained} of them from a near-tie on"]
    return [f"{who}: {where}: {what}", *(several if num_different > 1 else [])]


def _token(token_id: int | None) -> str:
    return "the end" if token_id is None else f"token {token_id}"
