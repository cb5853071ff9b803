"""A toy target: its next token is a hash of all tokens before it, read back from the real ragged cache."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.models.runner import ForwardOutput, ModelInfo, Segment

VOCAB_SIZE = 64


def next_of(tokens: Sequence[int]) -> int:
    """The toy's greedy token after `tokens`."""
    return zlib.crc32(bytes(tokens)) % VOCAB_SIZE


class HashRunner:
    """Tokens lie in the cache as keys, so a wrong commit, a stale slot or a wrong mask changes the output."""

    def __init__(self, num_rows: int = 4, max_len: int = 96, eos_token_ids: tuple[int, ...] = ()) -> None:
        self.cache = RaggedCache(1, num_rows, max_len + 16, 1, 1)
        self.info = ModelInfo("toy", VOCAB_SIZE, max_len, 0, 0, eos_token_ids)
        self.num_forwards = 0

    def forward(self, segments: Sequence[Segment], feature_layers: Sequence[int] = ()) -> ForwardOutput:
        assert not feature_layers
        self.num_forwards += 1
        rows = [self._row(segment) for segment in segments]
        return ForwardOutput(torch.cat(rows) if rows else torch.empty(0, VOCAB_SIZE))

    def _row(self, segment: Segment) -> Tensor:
        num = len(segment.token_ids)
        self.cache.check_fits(segment.row, num)
        keys = torch.tensor(segment.token_ids, dtype=torch.float32).view(1, num, 1)
        self.cache.write(0, segment.row, keys, keys)
        length = self.cache.lengths[segment.row]
        prefix = self.cache.keys[0][segment.row, 0, :length, 0].long().tolist()
        parents = segment.parents or range(-1, num - 1)
        paths: list[list[int]] = []
        for token_id, parent in zip(segment.token_ids, parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else prefix), token_id])
        logits = torch.zeros(segment.num_logits, VOCAB_SIZE)
        for out, path in enumerate(paths[num - segment.num_logits :]):
            winner = next_of(path)
            logits[out] = torch.tensor([((winner * 7 + each * 5) % VOCAB_SIZE) / VOCAB_SIZE for each in range(64)])
            logits[out, winner] = 3.0
        return logits


class WordTokenizer:
    """One short word a token; id 63 is the first half of a two-token character, 62 the second."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        data = b"".join(self._piece(each, skip_special_tokens) for each in token_ids)
        return data.decode("utf-8", errors="replace")

    def _piece(self, token_id: int, skip_special_tokens: bool) -> bytes:
        if token_id == 63:
            return b"\xc3"
        if token_id == 62:
            return b"\xa9"
        if token_id == 0 and skip_special_tokens:
            return b""
        return f"w{token_id} ".encode()
