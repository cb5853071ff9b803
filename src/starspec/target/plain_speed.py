"""How fast this target decodes without drafts: what a hub must beat. No clock of its own."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

NUM_ROUNDS: Final = 5  # plain rounds that are remembered: the last ones
MIN_ROUNDS: Final = 3  # until then nothing is known
PERIOD_S: Final = 60.0  # load changes: what is older is to be measured anew


class PlainSpeed:
    """Measured from rounds without a draft: those that came by themselves, and one now and then on purpose."""

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=NUM_ROUNDS)  # seconds
        self._measured_s = float("-inf")

    @property
    def tokens_per_s(self) -> float:
        """Of one sequence; 0 = not known."""
        return 1.0 / median(self._rounds) if len(self._rounds) >= MIN_ROUNDS else 0.0

    def add_round(self, verify_s: float, now: float) -> None:
        """A round without a draft took so long."""
        self._rounds.append(verify_s)
        self._measured_s = now

    def is_due(self, now: float) -> bool:
        """Whether the next round should go without drafts, to be measured."""
        return len(self._rounds) < MIN_ROUNDS or now - self._measured_s >= PERIOD_S
