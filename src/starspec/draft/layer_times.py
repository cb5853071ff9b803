"""What layers cost, as far as it has been seen: how much of a prompt fits beside those that decode."""

from __future__ import annotations

from starspec.draft.scheduler import Layer
from starspec.speculation.stats import Mean

WORTH_LAYERS = 4  # a prompt may delay a proposal by about as much as a short chain takes
LEAST_TOKENS = 16


class LayerTimes:
    """Seconds of a layer without prompts, and of one prompt token more."""

    def __init__(self) -> None:
        self._plain, self._per_token = Mean(), Mean()

    def add(self, layer: Layer, seconds: float) -> None:
        """Count one layer."""
        if layer.has_prefill:
            self._per_token.add(max(0.0, seconds - self._plain.value) / layer.num_prompt_tokens)
        else:
            self._plain.add(seconds)

    def chunk_beside(self, prefill_chunk: int) -> int:
        """Prompt tokens that take about as long as WORTH_LAYERS layers; `prefill_chunk` at most, and while unknown."""
        if not (self._plain.value and self._per_token.value):
            return prefill_chunk
        return min(prefill_chunk, max(LEAST_TOKENS, int(WORTH_LAYERS * self._plain.value / self._per_token.value)))
