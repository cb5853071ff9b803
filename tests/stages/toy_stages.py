"""A toy model in stages: numbers instead of vectors, and a mistake in any row changes all tokens behind it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.layers import LayerRange
from starspec.models.runner import ForwardOutput, ModelInfo, Segment
from starspec.sampling.counts import TokenCounts
from starspec.sampling.draw import next_token
from starspec.sampling.spec import SamplingSpec

VOCAB = 13
MAX_LEN = 64
PRIME = 9973


def mix(layer: int, entering: int, seen: Sequence[int]) -> int:
    """One layer at one token. Args: seen: what the layer gave at all tokens before."""
    total = sum((place + 2) * value for place, value in enumerate(seen))
    return (31 * entering + 17 * total + 7 * len(seen) + 101 * layer + 1) % PRIME


def logits_of(value: int) -> list[float]:
    return [value * (token + 3) % 19 / 4.0 for token in range(VOCAB)]


class ToyStage:
    """Implements Stage with one layer."""

    def __init__(self, layer: int, num_layers: int, num_rows: int) -> None:
        self.layers = LayerRange(layer, layer + 1, num_layers)
        self.cache = RaggedCache(1, num_rows, MAX_LEN, 1, 1, dtype=torch.float64)
        self.info = ModelInfo("toy", VOCAB, MAX_LEN, 1, 1, (), num_layers, 1, fingerprint="toy")

    def forward(
        self, segments: Sequence[Segment], feature_layers: Sequence[int] = (), *, hidden: Tensor | None = None
    ) -> ForwardOutput:
        assert not feature_layers
        leaving: list[int] = []
        wanted: list[int] = []
        entering = None if hidden is None else iter(hidden[:, 0].tolist())
        for segment in segments:
            ids = segment.token_ids if entering is None else [int(next(entering)) for _ in segment.token_ids]
            values = self._run(segment, ids)
            leaving += values
            wanted += values[len(values) - segment.num_logits :]
        if self.layers.is_last:
            rows = [logits_of(value) for value in wanted]
            return ForwardOutput(torch.tensor(rows, dtype=torch.float64).reshape(len(rows), VOCAB))
        states = torch.tensor(leaving, dtype=torch.float64).unsqueeze(1)
        return ForwardOutput(torch.empty(0, VOCAB, dtype=torch.float64), None, states)

    def _run(self, segment: Segment, entering: Sequence[int]) -> list[int]:
        row, start = segment.row, self.cache.lengths[segment.row]
        self.cache.check_fits(row, len(entering))
        seen = [int(value) for value in self.cache.keys[0][row, 0, :start, 0].tolist()]
        parents = segment.parents or range(-1, len(entering) - 1)
        paths: list[list[int]] = []
        for value, parent in zip(entering, parents, strict=True):
            before = seen if parent < 0 else paths[parent]
            paths.append([*before, mix(self.layers.start, value, before)])
        new = torch.tensor([float(path[-1]) for path in paths], dtype=torch.float64).reshape(1, -1, 1)
        self.cache.write(0, row, new, new)
        return [path[-1] for path in paths]


def toy_stages(num_stages: int, num_rows: int = 4) -> list[ToyStage]:
    return [ToyStage(layer, num_stages, num_rows) for layer in range(num_stages)]


@lru_cache(maxsize=100_000)
def _values(num_layers: int, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """What each layer gives at each token."""
    if not token_ids:
        return ((),) * num_layers
    entering, found = token_ids[-1], []
    for layer, before in enumerate(_values(num_layers, token_ids[:-1])):
        entering = mix(layer, entering, before)
        found.append((*before, entering))
    return tuple(found)


def plain(num_layers: int, prompt: Sequence[int], sampling: SamplingSpec, num_tokens: int) -> list[int]:
    """The tokens of plain decoding, computed without caches, stages and windows."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        row = torch.tensor(logits_of(_values(num_layers, tuple(token_ids))[-1][-1]), dtype=torch.float64)
        counts = TokenCounts(prompt, token_ids[len(prompt) :])
        token_ids.append(next_token(row, sampling, len(token_ids), counts))
    return token_ids
