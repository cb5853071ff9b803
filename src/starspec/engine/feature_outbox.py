"""What a target thought at the positions of one tag, and how much of it the hub has been told.

A hub wants each feature once, and of a tag that it opens only the last `window` of them (StarSD appendix E.2: what
crosses the wire is what the next draft reads, and nothing twice).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from starspec.cache.features import FeatureTail, are_readable, to_bytes
from starspec.ids import Tag
from starspec.wire.messages import Features, Welcome

MAX_DATA_BYTES: Final = 512 * 1024  # of features in one frame, which may be twice as large


class FeatureRequest(NamedTuple):
    """What a hub reads."""

    layers: tuple[int, ...] = ()  # hidden states, as Hugging Face counts them; () = it reads none
    window: int = 0  # of so many positions of the past, the last ones

    @classmethod
    def of(cls, welcome: Welcome) -> FeatureRequest:
        return cls(welcome.feature_layers, welcome.feature_window)


class FeatureOutbox:
    """Features of one tag's committed positions, kept as far back as its hub may ask."""

    def __init__(self, terms: FeatureRequest) -> None:
        self.are_wanted = bool(terms.layers)
        self._window = terms.window
        self._tail = FeatureTail(terms.window)
        self._told = 0  # the hub has those of positions before this, as far as it wants them

    def add(self, start: int, features: Tensor) -> None:
        """Add those of positions `start ..`: [T, F].

        No head reads a number that is not finite, or too large. Such a position is a hole: before the next one has
        come behind it, nothing reaches the last token, and the hub is asked for no draft that it could never give.
        """
        unreadable = (~are_readable(features)).nonzero().flatten().tolist()
        num_skipped = unreadable[-1] + 1 if unreadable else 0
        if num_skipped < len(features):
            self._tail.add(start + num_skipped, features[num_skipped:])

    def reach(self, num_positions: int) -> bool:
        """Whether nothing is missing up to there."""
        return self._tail.stop >= num_positions

    def forget_what_was_told(self) -> None:
        """The hub opens the tag anew, and knows nothing of it."""
        self._told = 0

    def frames(self, tag: Tag, num_tokens: int) -> list[Features]:
        """What the hub has not been told and still wants of a tag of so many tokens, in frames that it takes.

        Effects: counts as told from now on.
        """
        first = max(self._told, self._tail.start, num_tokens - 1 - self._window)
        self._told = max(self._told, self._tail.stop)
        if first >= self._tail.stop:
            return []
        features = self._tail.since(first, self._tail.stop)
        size = max(1, MAX_DATA_BYTES // (2 * features.shape[1]))  # positions of one frame
        return [
            Features(tag, first + index * size, len(part), to_bytes(part))
            for index, part in enumerate(torch.split(features, size))
        ]
