"""A stage whose layers take a stated time. The tokens of a sequence are a function of the position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.layers import LayerRange
from starspec.models.runner import ForwardOutput, ModelInfo, Segment
from starspec.policy.traversal import StageTime

VOCAB: Final = 16


def true_token(position: int) -> int:
    """What the target emits at a position, whatever the sequence."""
    return (position * position + 3 * position) % VOCAB


class ModelledStage:
    """Implements Stage.

    Args:
        layers: of the model; here each stage has one.
        time: of a forward.
        spend: lets so many seconds pass: it sleeps, or moves a clock of its own.
        num_rows: of the cache.
        max_len: positions of a row.
    """

    def __init__(
        self, layers: LayerRange, time: StageTime, spend: Callable[[float], None], num_rows: int, max_len: int
    ) -> None:
        self.layers = layers
        self.cache = RaggedCache(1, num_rows, max_len, 1, 1)
        self.info = ModelInfo("modelled", VOCAB, max_len, 1, 1, (), layers.num_layers, 1, fingerprint="modelled")
        self._time = time
        self._spend = spend

    def forward(
        self, segments: Sequence[Segment], feature_layers: Sequence[int] = (), *, hidden: Tensor | None = None
    ) -> ForwardOutput:
        assert not feature_layers
        num_tokens = sum(len(each.token_ids) for each in segments)
        self._spend(self._time.forward_s(num_tokens))
        wanted = [
            self.cache.lengths[each.row] + index + 1
            for each in segments
            for index in range(len(each.token_ids) - each.num_logits, len(each.token_ids))
        ]
        states = torch.zeros(num_tokens, 1) if hidden is None else hidden
        if not self.layers.is_last:
            return ForwardOutput(torch.empty(0, VOCAB), None, states)
        logits = torch.zeros(len(wanted), VOCAB)
        for row, position in enumerate(wanted):
            logits[row, true_token(position)] = 1.0
        return ForwardOutput(logits)
