"""One direction of an in-memory link, with the faults of a network, reproducible from a seed."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass
from typing import Generic, TypeVar

from starspec.errors import LinkError
from starspec.wire.codec import Decoder, encode
from starspec.wire.messages import Message

M = TypeVar("M", bound=Message)


class VirtualClock:
    """A clock that moves only when it is told to. A target that waits advances it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move the clock forward; negative values do nothing."""
        self.now_s += max(0.0, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often and how long the channel drops, repeats and delays each message, independently of the others."""

    seed: int = 0
    drop: float = 0.0  # probability
    duplicate: float = 0.0  # probability
    max_delay_s: float = 0.0  # uniform from 0; messages with different delays overtake each other


class Channel(Generic[M]):
    """Messages on their way, each with its time of arrival."""

    def __init__(self, decoder: Decoder[M] | None, faults: Faults | None, salt: int) -> None:
        self._decoder = decoder
        self._faults = faults or Faults()
        self._random = random.Random(f"{self._faults.seed}/{salt}")  # noqa: S311  not for secrets
        self._heap: list[tuple[float, int, M]] = []
        self._order = itertools.count()
        self.num_rejected = 0  # messages that did not survive the codec

    def put(self, message: M, now_s: float) -> None:
        """Send a message through the codec and the faults. A message that the codec rejects is dropped and counted."""
        try:
            arrived = message if self._decoder is None else self._decoder.decode(encode(message))
        except LinkError:
            self.num_rejected += 1
            return
        if self._random.random() < self._faults.drop:
            return
        copies = 1 + (self._random.random() < self._faults.duplicate)
        for _ in range(copies):
            arrives_s = now_s + self._random.uniform(0.0, self._faults.max_delay_s)
            heapq.heappush(self._heap, (arrives_s, next(self._order), arrived))

    def take(self, now_s: float) -> list[tuple[float, M]]:
        """(time of arrival, message) for everything that has arrived by now."""
        arrived = []
        while self._heap and self._heap[0][0] <= now_s:
            arrived_s, _, message = heapq.heappop(self._heap)
            arrived.append((arrived_s, message))
        return arrived

    @property
    def next_at_s(self) -> float | None:
        """When the next message arrives; None if nothing is on its way."""
        return self._heap[0][0] if self._heap else None
