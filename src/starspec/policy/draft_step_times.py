"""The measured cost of draft steps, by their sequences, and how much of a prompt fits beside them."""

from __future__ import annotations

from math import inf
from typing import Final

from starspec.policy.capacity import DraftStepCost
from starspec.policy.draft_batch import DraftStep
from starspec.policy.estimators import DecayedLine, DecayedMean

WORTH_STEPS: Final = 4  # a prompt may delay a proposal by about as much as a short chain takes
MIN_TOKENS: Final = 16
WEIGHT: Final = 0.1  # of the newest draft step
FADE: Final = 0.99  # of all draft steps before it, in the cost by sequences, or by size
MIN_VARIANCE: Final = 0.05  # of their number: with less, the slope cannot be measured ...
ASSUMED_SHARE: Final = 0.1  # ... and each further one is assumed to add this share of a draft step


class DraftStepTimes:
    """Seconds of a draft step without prompts, and of one prompt token more."""

    def __init__(self) -> None:
        self._plain, self._per_token = DecayedMean(WEIGHT), DecayedMean(WEIGHT)
        self._by_sequences, self._by_size = DecayedLine(FADE), DecayedLine(FADE)

    def add(self, draft_step: DraftStep, seconds: float) -> None:
        """Count one draft step."""
        if draft_step.has_prefill:
            self._per_token.add(max(0.0, seconds - self._plain.value) / draft_step.num_prompt_tokens)
        else:
            self._plain.add(seconds)
            self._by_sequences.add(len(draft_step.sequences), seconds)
            self._by_size.add(draft_step.size, seconds)

    @property
    def cost(self) -> DraftStepCost | None:
        """Cost of a draft step without prompts, by its sequences; None before the first.

        A further sequence costs at least nothing, and at most as much as each of the others.
        """
        return _cost(self._by_sequences)

    @property
    def size_cost(self) -> DraftStepCost | None:
        """The same by the size of draft steps, whose units count as sequences."""
        return _cost(self._by_size)

    def chunk_beside(self, prefill_chunk: int, step_s: float = inf) -> int:
        """Prompt tokens that take about as long as WORTH_STEPS draft steps.

        Args:
            prefill_chunk: the most that may be returned; returned before the first draft step.
            step_s: what such a draft step takes, if that is less than the draft steps so far took.
        """
        if not self._plain.value:
            return prefill_chunk
        if not self._per_token.count:  # a small chunk tells what one costs
            return min(prefill_chunk, MIN_TOKENS)
        if not self._per_token.value:
            return prefill_chunk
        num_tokens = int(WORTH_STEPS * min(step_s, self._plain.value) / self._per_token.value)
        return min(prefill_chunk, max(MIN_TOKENS, num_tokens))


def _cost(line: DecayedLine) -> DraftStepCost | None:
    num, seconds = line.mean
    if not seconds:
        return None
    if line.variance < MIN_VARIANCE:
        alone_s = seconds / (1.0 + ASSUMED_SHARE * (num - 1.0))
        return DraftStepCost(alone_s, ASSUMED_SHARE * alone_s)
    slope = min(max(0.0, line.slope), seconds / num)
    return DraftStepCost(seconds - slope * (num - 1.0), slope)
