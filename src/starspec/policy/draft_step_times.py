"""What draft steps cost, as far as it has been seen: for how many sequences, and how much of a prompt fits beside
them.
"""

from __future__ import annotations

from starspec.policy.capacity import DraftStepCost
from starspec.policy.draft_batch import DraftStep
from starspec.stats import Mean

WORTH_STEPS = 4  # a prompt may delay a proposal by about as much as a short chain takes
LEAST_TOKENS = 16
MEMORY = 0.99  # weight of a draft step, one draft step later
MIN_SPREAD = 0.05  # sequences squared: with less variance there is no slope to be seen ...
SUPPOSED_SHARE = 0.1  # ... and each further sequence is supposed to add so much of a draft step


class DraftStepTimes:
    """Seconds of a draft step without prompts, and of one prompt token more."""

    def __init__(self) -> None:
        self._plain, self._per_token = Mean(), Mean()
        self._line = _FittedLine()

    def add(self, draft_step: DraftStep, seconds: float) -> None:
        """Count one draft step."""
        if draft_step.has_prefill:
            self._per_token.add(max(0.0, seconds - self._plain.value) / draft_step.num_prompt_tokens)
        else:
            self._plain.add(seconds)
            self._line.add(len(draft_step.portions), seconds)

    @property
    def cost(self) -> DraftStepCost | None:
        """Of a draft step without prompts, by its sequences; None before the first."""
        return self._line.cost

    def chunk_beside(self, prefill_chunk: int) -> int:
        """Prompt tokens that take about as long as WORTH_STEPS draft steps; `prefill_chunk` at most, and while
        unknown.
        """
        if not (self._plain.value and self._per_token.value):
            return prefill_chunk
        return min(prefill_chunk, max(LEAST_TOKENS, int(WORTH_STEPS * self._plain.value / self._per_token.value)))


class _FittedLine:
    """Least squares over draft steps, the older the less."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # sums: weights, sequences, seconds, products

    def add(self, num_sequences: int, seconds: float) -> None:
        self._weight = MEMORY * self._weight + 1.0
        self._x = MEMORY * self._x + num_sequences
        self._y = MEMORY * self._y + seconds
        self._xx = MEMORY * self._xx + num_sequences * num_sequences
        self._xy = MEMORY * self._xy + num_sequences * seconds

    @property
    def cost(self) -> DraftStepCost | None:
        if not self._y:
            return None
        num_sequences, seconds = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - num_sequences**2
        if spread < MIN_SPREAD:
            alone_s = seconds / (1.0 + SUPPOSED_SHARE * (num_sequences - 1.0))
            return DraftStepCost(alone_s, SUPPOSED_SHARE * alone_s)
        slope = (self._xy / self._weight - num_sequences * seconds) / spread
        slope = min(
            max(0.0, slope), seconds / num_sequences
        )  # a sequence more is not free of charge, nor dearer than one
        return DraftStepCost(seconds - slope * (num_sequences - 1.0), slope)
