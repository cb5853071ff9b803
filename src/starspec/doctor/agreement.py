"""How often a draft guesses right, read off answers that the target has given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from starspec.bench.decode import Answer, Job
from starspec.models.runner import ModelRunner, Segment
from starspec.speculation.sampling import propose_tokens

NUM_BRANCHES = 4  # first choices of the draft that are looked at: what a tree with so many branches would propose
PREFILL_CHUNK = 256


@dataclass(slots=True)
class Agreement:
    """How often the draft would have guessed the target's tokens, all before them known."""

    first: list[list[bool]] = field(default_factory=list)  # a list an answer: whether the first choice was right
    num_in_branches: int = 0  # positions at which one of the NUM_BRANCHES first choices was right

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


def measure_agreement(draft: ModelRunner, jobs: Sequence[Job], answers: Sequence[Answer]) -> Agreement:
    """Read the target's answers with the draft, and ask at every position what it would have proposed.

    Args:
        draft: with a free row that holds the longest prompt and answer.
        jobs, answers: what the target was asked, and what it said; laws without penalties.
    """
    agreement = Agreement()
    for job, answer in zip(jobs, answers, strict=True):
        is_right = []
        for index, logits in enumerate(answer_logits(draft, job.prompt_token_ids, answer.token_ids)):
            position = len(job.prompt_token_ids) + index
            choices = [token_id for token_id, _ in propose_tokens(logits, job.law, position, num_tokens=NUM_BRANCHES)]
            is_right.append(choices[0] == answer.token_ids[index])
            agreement.num_in_branches += answer.token_ids[index] in choices
        agreement.first.append(is_right)
    return agreement


def answer_logits(runner: ModelRunner, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """A model's logits before each token of an answer: [T, V].

    Effects: leases and frees a row.
    """
    row = runner.cache.lease()
    try:
        for start in range(0, len(prompt) - 1, PREFILL_CHUNK):
            chunk = prompt[start : min(start + PREFILL_CHUNK, len(prompt) - 1)]
            runner.forward([Segment(row, chunk, num_logits=0)])
            runner.cache.append(row, len(chunk))
        token_ids = [prompt[-1], *answer[:-1]]
        return runner.forward([Segment(row, token_ids, num_logits=len(token_ids))]).logits
    finally:
        runner.cache.free(row)
