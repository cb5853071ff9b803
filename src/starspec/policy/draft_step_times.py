"""What layers cost, as far as it has been seen: for how many sessions, and how much of a prompt fits beside them."""

from __future__ import annotations

from starspec.policy.capacity import LayerCost
from starspec.policy.draft_batch import Layer
from starspec.stats import Mean

WORTH_LAYERS = 4  # a prompt may delay a proposal by about as much as a short chain takes
LEAST_TOKENS = 16
MEMORY = 0.99  # weight of a layer, one layer later
MIN_SPREAD = 0.05  # sessions squared: with less variance there is no slope to be seen ...
SUPPOSED_SHARE = 0.1  # ... and each further session is supposed to add so much of a layer


class LayerTimes:
    """Seconds of a layer without prompts, and of one prompt token more."""

    def __init__(self) -> None:
        self._plain, self._per_token = Mean(), Mean()
        self._line = _FittedLine()

    def add(self, layer: Layer, seconds: float) -> None:
        """Count one layer."""
        if layer.has_prefill:
            self._per_token.add(max(0.0, seconds - self._plain.value) / layer.num_prompt_tokens)
        else:
            self._plain.add(seconds)
            self._line.add(len(layer.portions), seconds)

    @property
    def cost(self) -> LayerCost | None:
        """Of a layer without prompts, by its sessions; None before the first."""
        return self._line.cost

    def chunk_beside(self, prefill_chunk: int) -> int:
        """Prompt tokens that take about as long as WORTH_LAYERS layers; `prefill_chunk` at most, and while unknown."""
        if not (self._plain.value and self._per_token.value):
            return prefill_chunk
        return min(prefill_chunk, max(LEAST_TOKENS, int(WORTH_LAYERS * self._plain.value / self._per_token.value)))


class _FittedLine:
    """Least squares over layers, the older the less."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0  # sums: weights, sessions, seconds, products

    def add(self, num_sessions: int, seconds: float) -> None:
        self._weight = MEMORY * self._weight + 1.0
        self._x = MEMORY * self._x + num_sessions
        self._y = MEMORY * self._y + seconds
        self._xx = MEMORY * self._xx + num_sessions * num_sessions
        self._xy = MEMORY * self._xy + num_sessions * seconds

    @property
    def cost(self) -> LayerCost | None:
        if not self._y:
            return None
        num_sessions, seconds = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - num_sessions**2
        if spread < MIN_SPREAD:
            alone_s = seconds / (1.0 + SUPPOSED_SHARE * (num_sessions - 1.0))
            return LayerCost(alone_s, SUPPOSED_SHARE * alone_s)
        slope = (self._xy / self._weight - num_sessions * seconds) / spread
        slope = min(
            max(0.0, slope), seconds / num_sessions
        )  # a session more is not free of charge, nor dearer than one
        return LayerCost(seconds - slope * (num_sessions - 1.0), slope)
