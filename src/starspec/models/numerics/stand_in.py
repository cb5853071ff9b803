"""Hidden states that stand in for those of the stage before, so that a stage can be probed and checked alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from starspec.models.layers import LayerRange
from starspec.models.packed import PackedRunner
from starspec.models.runner import Segment

SCALE: Final = 0.02  # of the numbers: small, so that what leaves the layers is mostly their own work


def stand_in(
    layers: LayerRange, token_ids: Sequence[int], hidden_size: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """Random hidden states [T, C], always the same for a token; None for the first stage, which has embeddings."""
    if layers.is_first:
        return None
    generator = torch.Generator()
    rows = [torch.randn(hidden_size, generator=generator.manual_seed(token_id)) for token_id in token_ids]
    return (torch.stack(rows) * SCALE).to(dtype).to(device)


def forward_part(runner: PackedRunner, segments: Sequence[Segment]) -> Tensor:
    """Forward segments without `num_forwarded` through a runner, whatever layers it has.

    Returns: the logits that the segments ask for; without the last layer, the hidden states [rows, C] of these tokens.
    """
    token_ids = [token_id for segment in segments for token_id in segment.token_ids]
    cache, hidden_size = runner.cache, runner.info.hidden_size
    entering = stand_in(runner.layers, token_ids, hidden_size, cache.dtype, cache.device)
    output = runner.forward(segments, hidden=entering)
    if output.hidden is None:
        return output.logits
    parts = torch.split(output.hidden, [len(segment.token_ids) for segment in segments])
    return torch.cat([part[len(part) - segment.num_logits :] for part, segment in zip(parts, segments, strict=True)])
