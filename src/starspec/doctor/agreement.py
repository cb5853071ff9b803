"""How often a draft predicts the tokens of the target's own answers, position by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from starspec.harness.decode import Job, JobResult
from starspec.models.heads.head import EagleHead
from starspec.models.runner import ModelRunner, Segment
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.propose_coupled import propose_tokens
from starspec.speculation.rejection import probabilities

CHUNK = 256  # tokens of one forward


class AnswerScorer(Protocol):
    """Gives the logits of a draft for an answer that is already known."""

    def answer_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        """The draft's logits for each token of an answer, given all tokens before it: [T, V], V of the target.

        Tokens outside of the draft's vocabulary have -inf. Effects: leases and frees rows.
        """
        ...


class CausalScorer:
    """Scores with a causal LM, which needs token ids only."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def answer_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        info, cache = self._runner.info, self._runner.cache
        known = [*prompt, *answer[:-1]][: info.max_model_len]  # a draft gets no requests beyond its length
        max_nodes = max(0, len(known) - len(prompt) + 1)
        num_unheard = min(len(prompt), len(known)) - 1
        row = cache.lease()
        try:
            for chunk in _chunks(known[:num_unheard]):
                self._runner.forward([Segment(row, chunk, num_logits=0)])
                cache.append(row, len(chunk))
            drafted = self._runner.forward([Segment(row, known[num_unheard:], num_logits=max_nodes)]).logits
        finally:
            cache.free(row)
        logits = drafted.new_full((len(answer), info.vocab_size), float("-inf"))
        logits[:max_nodes] = drafted
        return logits


class HeadScorer:
    """Scores with an EAGLE head, which takes the target's hidden states as input.

    Slot i of the head combines the feature of position i with token i + 1, and predicts token i + 2. So it cannot
    predict the first token of an answer to a prompt of one token.
    """

    def __init__(self, head: EagleHead, target: ModelRunner) -> None:
        self._head = head
        self._target = target

    def answer_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        known = [*prompt, *answer[:-1]][: self._head.info.max_model_len]
        end = max(0, len(known) - len(prompt) + 1)  # answer tokens with all tokens before them within the head's length
        drafted = self._slot_logits(known, min(end, len(known) - 1))  # [T or T - 1, Vd]
        logits = drafted.new_full((len(answer), self._head.spec.vocab_size), float("-inf"))
        guessed = logits[end - len(drafted) : end]
        if self._head.token_ids is None:
            guessed.copy_(drafted)
        else:
            guessed[:, self._head.token_ids] = drafted
        return logits

    def _slot_logits(self, token_ids: Sequence[int], num: int) -> Tensor:
        """Logits of the last `num` slots of these tokens: [num, Vd]."""
        features = self._features(token_ids[:-1])
        cache, row, start = self._head.cache, self._head.cache.lease(), 0
        drafted = []
        try:
            for chunk in _chunks(token_ids[1:]):
                stop = start + len(chunk)
                num_logits = max(0, min(len(chunk), stop - (len(features) - num)))
                fused = self._head.fuse(features[start:stop])
                drafted.append(self._head.forward([Segment(row, chunk, num_logits)], fused).logits)
                cache.append(row, len(chunk))
                start = stop
            return torch.cat(drafted) if drafted else features.new_empty(0, self._head.spec.draft_vocab_size)
        finally:
            cache.free(row)

    def _features(self, token_ids: Sequence[int]) -> Tensor:
        """The target's features at each position: [T, F]."""
        layers, cache, row = self._head.spec.feature_layers, self._target.cache, self._target.cache.lease()
        parts = [torch.empty(0, self._head.spec.feature_size)]
        try:
            for chunk in _chunks(token_ids):
                found = self._target.forward([Segment(row, chunk, num_logits=0)], layers).features
                assert found is not None
                parts.append(found.to(self._head.cache.device, self._head.cache.dtype))
                cache.append(row, len(chunk))
            return torch.cat(parts[1:] or parts)
        finally:
            cache.free(row)


def _chunks(token_ids: Sequence[int]) -> list[Sequence[int]]:
    return [token_ids[start : start + CHUNK] for start in range(0, len(token_ids), CHUNK)]


NUM_BRANCHES = 4  # top choices of the draft that count, as in a tree with so many branches


@dataclass(frozen=True, slots=True)
class Sample:
    """The target's answers under one sampling setting."""

    sampling: str
    jobs: Sequence[Job]
    answers: Sequence[JobResult]  # decoded plainly


@dataclass(slots=True)
class Agreement:
    """How often the draft predicts the target's tokens, given all tokens before them."""

    first: list[list[bool]] = field(default_factory=list)  # a list for each answer: whether the first choice was right
    num_in_branches: int = 0  # positions at which one of the NUM_BRANCHES first choices was right
    num_sayable: int = 0  # positions whose token is in the draft's vocabulary
    overlaps: list[float] | None = None  # beta(y) of each position; None = the target's distributions are not known

    @property
    def num_positions(self) -> int:
        return sum(len(answer) for answer in self.first)

    @property
    def first_rate(self) -> float:
        """Share of positions whose token was the draft's first choice; 0 if there are none."""
        return sum(map(sum, self.first)) / max(1, self.num_positions)

    @property
    def branches_rate(self) -> float:
        """Share of positions whose token was among the first NUM_BRANCHES choices; 0 if there are none."""
        return self.num_in_branches / max(1, self.num_positions)

    @property
    def sayable_rate(self) -> float:
        """Share of positions whose token the draft's vocabulary holds; 0 if there are none."""
        return self.num_sayable / max(1, self.num_positions)

    @property
    def beta(self) -> float | None:
        """The mean of beta(y) over all positions; None if it is not known."""
        return sum(self.overlaps) / max(1, len(self.overlaps)) if self.overlaps is not None else None


def overlap(target_logits: Tensor, draft_logits: Tensor, sampling: SamplingSpec, position: int) -> float:
    """beta(y): the sum of min(p, q) over all tokens (StarSD, equation 1), after temperature, top-k, top-p and min-p.

    A rejection sampler accepts the draft's token with this probability, and no rule can do so more often. Coupled draws
    are equal with at least beta / (2 - beta).

    Args:
        target_logits, draft_logits: [V] after the prefix y; a draft that says nothing has -inf everywhere.
        position: of the token after y.
    """
    if not bool(draft_logits.isfinite().any()):
        return 0.0
    target, draft = (probabilities(each, sampling, position) for each in (target_logits, draft_logits))
    return float(torch.minimum(target.cpu(), draft.cpu()).sum())


def measure_agreement(scorer: AnswerScorer, sample: Sample, target: AnswerScorer | None = None) -> Agreement:
    """Score the target's answers with the draft, and compare its proposal at every position.

    Args:
        scorer: with a free row that holds the longest prompt and answer.
        sample: without penalties.
        target: scores with the target itself, as `scorer` does with the draft; None = beta stays unknown.
    """
    agreement = Agreement(overlaps=None if target is None else [])
    for job, answer in zip(sample.jobs, sample.answers, strict=True):
        is_right = []
        logits = scorer.answer_logits(job.prompt_token_ids, answer.token_ids)
        if target is not None and agreement.overlaps is not None:
            own = target.answer_logits(job.prompt_token_ids, answer.token_ids)
            first = len(job.prompt_token_ids)
            agreement.overlaps += [
                overlap(own[index], logits[index], job.sampling, first + index)
                for index in range(len(answer.token_ids))
            ]
        for index, token_id in enumerate(answer.token_ids):
            position = len(job.prompt_token_ids) + index
            (guesses,) = propose_tokens(
                logits[index : index + 1], job.sampling, position, [None], num_tokens=NUM_BRANCHES
            )
            is_sayable = float(logits[index][token_id]) > float("-inf")
            choices = [token for token, _ in guesses] if is_sayable else []
            is_right.append(choices[:1] == [token_id])
            agreement.num_in_branches += token_id in choices
            agreement.num_sayable += is_sayable
        agreement.first.append(is_right)
    return agreement
