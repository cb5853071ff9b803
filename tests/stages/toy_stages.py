"""A toy model in stages: numbers instead of vectors, and a mistake in any row changes all tokens behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.config import MAX_DRAFT_TOKENS
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


class ToyDraft:
    """A ModelRunner that drafts for the toy model: it is the same model, but wrong behind some texts.

    Tokens lie in its cache as keys, so that a wrong commit or a stale slot changes what it drafts.

    Args:
        num_layers: of the toy model.
        share_wrong: of texts behind which it is wrong.
    """

    def __init__(self, num_layers: int, num_rows: int, share_wrong: float) -> None:
        self.cache = RaggedCache(1, num_rows, MAX_LEN + MAX_DRAFT_TOKENS, 1, 1, dtype=torch.float64)
        self.info = ModelInfo("toy draft", VOCAB, MAX_LEN, 1, 1, (), num_layers, 1)
        self._num_layers = num_layers
        self._share_wrong = share_wrong

    def forward(
        self,
        segments: Sequence[Segment],
        feature_layers: Sequence[int] = (),
        *,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ForwardOutput:
        assert not feature_layers
        rows = [row for segment in segments for row in self._rows(segment)]
        return ForwardOutput(torch.tensor(rows, dtype=torch.float64).reshape(len(rows), VOCAB))

    def _rows(self, segment: Segment) -> list[list[float]]:
        num, first, start = len(segment.token_ids), segment.num_forwarded, self.cache.lengths[segment.row]
        keys = self.cache.keys[0][segment.row, 0, :, 0]
        keys[start + first : start + num] = torch.tensor(segment.token_ids[first:], dtype=torch.float64)
        prefix, new = keys[:start].int().tolist(), keys[start : start + num].int().tolist()
        parents = range(-1, num - 1) if segment.parents is None else segment.parents
        paths: list[list[int]] = []
        for token_id, parent in zip(new, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else prefix), token_id])
        return [self._logits(path) for path in paths[num - segment.num_logits :]]

    def _logits(self, token_ids: list[int]) -> list[float]:
        value = _values(self._num_layers, tuple(token_ids))[-1][-1]
        is_wrong = value * 31 % 100 < 100 * self._share_wrong
        return logits_of(value + is_wrong)


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
