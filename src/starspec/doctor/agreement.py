"""How often a draft guesses right, read off answers that the target has given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starspec.doctor.reading import AnswerReader
from starspec.harness.decode import Answer, Job
from starspec.speculation.propose_coupled import propose_tokens

NUM_BRANCHES = 4  # first choices of the draft that are looked at: what a tree with so many branches would propose


@dataclass(frozen=True, slots=True)
class Sample:
    """What the target says under one way of sampling."""

    sampling: str
    jobs: Sequence[Job]
    answers: Sequence[Answer]  # decoded plainly


@dataclass(slots=True)
class Agreement:
    """How often the draft would have guessed the target's tokens, all before them known."""

    first: list[list[bool]] = field(default_factory=list)  # a list an answer: whether the first choice was right
    num_in_branches: int = 0  # positions at which one of the NUM_BRANCHES first choices was right
    num_sayable: int = 0  # positions whose token is one that the draft can say

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


def measure_agreement(reader: AnswerReader, sample: Sample) -> Agreement:
    """Read the target's answers with the draft, and ask at every position what it would have proposed.

    Args:
        reader: with a free row that holds the longest prompt and answer.
        sample: its laws without penalties.
    """
    agreement = Agreement()
    for job, answer in zip(sample.jobs, sample.answers, strict=True):
        is_right = []
        logits = reader.answer_logits(job.prompt_token_ids, answer.token_ids)
        for index, token_id in enumerate(answer.token_ids):
            position = len(job.prompt_token_ids) + index
            (guesses,) = propose_tokens(
                logits[index : index + 1], job.sampling, position, [None], num_tokens=NUM_BRANCHES
            )
            is_sayable = float(logits[index][token_id]) > float("-inf")
            choices = [guess for guess, _ in guesses] if is_sayable else []
            is_right.append(choices[:1] == [token_id])
            agreement.num_in_branches += token_id in choices
            agreement.num_sayable += is_sayable
        agreement.first.append(is_right)
    return agreement
