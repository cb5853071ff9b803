"""A draft reads what the target has said: at every position, what would it have guessed?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from starspec.models.heads.head import EagleHead
from starspec.models.runner import ModelRunner, Segment

CHUNK = 256  # tokens of one forward


class AnswerReader(Protocol):
    """A draft of any kind."""

    def answer_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        """The draft's logits before each token of an answer, all before it known: [T, V], V the target's.

        A token that it can never say has -inf. Effects: leases and frees rows.
        """
        ...


class CausalReader:
    """Reads with a causal LM, which needs token ids alone."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def answer_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        info, cache = self._runner.info, self._runner.cache
        known = [*prompt, *answer[:-1]][: info.max_model_len]  # beyond its length a draft is not asked
        max_nodes = max(0, len(known) - len(prompt) + 1)
        num_unheard = min(len(prompt), len(known)) - 1
        row = cache.lease()
        try:
            for chunk in _chunks(known[:num_unheard]):
                self._runner.forward([Segment(row, chunk, num_logits=0)])
                cache.append(row, len(chunk))
            said = self._runner.forward([Segment(row, known[num_unheard:], num_logits=max_nodes)]).logits
        finally:
            cache.free(row)
        logits = said.new_full((len(answer), info.vocab_size), float("-inf"))
        logits[:max_nodes] = said
        return logits


class HeadReader:
    """Reads with an EAGLE head, which sees what the target itself thought at each position.

    Slot i of the head pairs the feature of position i with token i + 1, and says token i + 2; so the first token of
    an answer to a prompt of one token is never guessed.
    """

    def __init__(self, head: EagleHead, target: ModelRunner) -> None:
        self._head = head
        self._target = target

    def answer_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
        known = [*prompt, *answer[:-1]][: self._head.info.max_model_len]
        end = max(0, len(known) - len(prompt) + 1)  # answer tokens that it can know all before of
        said = self._slot_logits(known, min(end, len(known) - 1))  # [T or T - 1, Vd]
        logits = said.new_full((len(answer), self._head.spec.vocab_size), float("-inf"))
        guessed = logits[end - len(said) : end]
        if self._head.token_ids is None:
            guessed.copy_(said)
        else:
            guessed[:, self._head.token_ids] = said
        return logits

    def _slot_logits(self, token_ids: Sequence[int], num: int) -> Tensor:
        """Logits of the last `num` slots that tokens make: [num, Vd]."""
        features = self._features(token_ids[:-1])
        cache, row, start = self._head.cache, self._head.cache.lease(), 0
        said = []
        try:
            for chunk in _chunks(token_ids[1:]):
                stop = start + len(chunk)
                num_logits = max(0, min(len(chunk), stop - (len(features) - num)))
                fused = self._head.fuse(features[start:stop])
                said.append(self._head.forward([Segment(row, chunk, num_logits)], fused).logits)
                cache.append(row, len(chunk))
                start = stop
            return torch.cat(said) if said else features.new_empty(0, self._head.spec.draft_vocab_size)
        finally:
            cache.free(row)

    def _features(self, token_ids: Sequence[int]) -> Tensor:
        """What the target thinks at each position: [T, F]."""
        layers, cache, row = self._head.spec.feature_layers, self._target.cache, self._target.cache.lease()
        parts = [torch.empty(0, self._head.spec.feature_size)]
        try:
            for chunk in _chunks(token_ids):
                found = self._target.forward([Segment(row, chunk, num_logits=0)], layers).features
                assert found is not None
                parts.append(found.to(self._head.cache.device, self._head.cache.dtype))
                cache.append(row, len(chunk))
            return torch.cat(parts[1:] or parts)
        finally:
            cache.free(row)


def _chunks(token_ids: Sequence[int]) -> list[Sequence[int]]:
    return [token_ids[start : start + CHUNK] for start in range(0, len(token_ids), CHUNK)]
