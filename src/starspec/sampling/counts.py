"""Which tokens a sequence has, and how often: the input of penalties, min_tokens and bad words."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from starspec.sampling.spec import MAX_BAD_WORD_LEN


class SeenTokens(NamedTuple):
    """The distinct tokens of prompt and output, in order of first appearance."""

    token_ids: Tensor  # [U] int64
    num_output: Tensor  # [U] float64: occurrences in the output; 0 for a token that only the prompt has


class TokenCounts:
    """Token counts of one sequence. An overlay (`with_path`) adds draft tokens to them without a copy.

    Args:
        prompt_ids: the prompt; its tokens count for the repetition penalty only.
        output_ids: the output tokens so far.
    """

    def __init__(self, prompt_ids: Sequence[int], output_ids: Iterable[int] = ()) -> None:
        self.prompt_len = len(prompt_ids)
        self._path: tuple[int, ...] = ()
        self._last: deque[int] = deque(maxlen=MAX_BAD_WORD_LEN - 1)  # of the output, without the path
        self._ids = array("q", dict.fromkeys(prompt_ids))
        self._num_output = array("d", bytes(8 * len(self._ids)))
        self._slots = {token_id: slot for slot, token_id in enumerate(self._ids)}
        self.append(output_ids)

    def append(self, token_ids: Iterable[int]) -> None:
        """Count committed output tokens.

        Must not be called on an overlay. Overlays that were made earlier are invalid afterwards.
        """
        assert not self._path, "cannot append to an overlay: its path is not committed"
        for token_id in token_ids:
            slot = self._slots.setdefault(token_id, len(self._ids))
            if slot == len(self._ids):
                self._ids.append(token_id)
                self._num_output.append(0.0)
            self._num_output[slot] += 1.0
            self._last.append(token_id)

    def with_path(self, token_ids: Sequence[int]) -> TokenCounts:
        """The counts after these further output tokens: an overlay that shares all other memory with this object."""
        overlay = copy(self)
        overlay._path = (*self._path, *token_ids)
        return overlay

    @property
    def last_output(self) -> tuple[int, ...]:
        """The last output tokens in order, as many as a bad word can have in front of its last."""
        return (*self._last, *self._path)

    def seen(self) -> SeenTokens:
        """All counts, as new tensors on the CPU."""
        path = Counter(self._path)
        fresh = [token_id for token_id in path if token_id not in self._slots]
        num_output = np.concatenate((np.array(self._num_output), np.array([path.pop(each) for each in fresh])))
        for token_id, num in path.items():
            num_output[self._slots[token_id]] += num
        token_ids = np.concatenate((np.array(self._ids), np.array(fresh, dtype=np.int64)))
        return SeenTokens(torch.from_numpy(token_ids), torch.from_numpy(num_output))
