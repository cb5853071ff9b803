"""How fast this target decodes without drafts: what a hub must beat. No clock of its own."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median
from typing import Final, NamedTuple

NUM_ROUNDS: Final = 5  # plain rounds that are remembered: the last ones
MIN_ROUNDS: Final = 3  # until then nothing is known
PERIOD_S: Final = 60.0  # load changes: what is older is to be measured anew


class _Round(NamedTuple):
    at_s: float
    seconds: float


class PlainSpeed:
    """Measured from rounds without a draft: those that came by themselves, and some now and then on purpose.

    How long a round takes depends on how many sequences share it, so each size is measured apart, within a factor of
    two.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, deque[_Round]] = defaultdict(lambda: deque(maxlen=NUM_ROUNDS))  # by size
        self._known: dict[int, float] = {}  # size -> tokens a second; what was measured last comes last

    def tokens_per_s(self, num_sequences: int) -> float:
        """Of one sequence, of so many in a round; of those measured last, until that is known; 0 = nothing is known."""
        last = next(reversed(self._known.values()), 0.0)
        return self._known.get(_size(num_sequences), last)

    def add_round(self, verify_s: float, num_sequences: int, now: float) -> None:
        """A round of so many sequences without a draft took so long.

        What was measured long before it is forgotten; what is known of it by that stays until there is enough again.
        """
        size = _size(num_sequences)
        rounds = self._rounds[size]
        while rounds and now - rounds[0].at_s >= PERIOD_S:
            rounds.popleft()
        rounds.append(_Round(now, verify_s))
        if len(rounds) >= MIN_ROUNDS:
            self._known.pop(size, None)
            self._known[size] = 1.0 / median(each.seconds for each in rounds)

    def is_due(self, num_sequences: int, now: float) -> bool:
        """Whether the next round, of so many sequences, should go without drafts, to be measured."""
        rounds = self._rounds[_size(num_sequences)]
        return sum(now - each.at_s < PERIOD_S for each in rounds) < MIN_ROUNDS


def _size(num_sequences: int) -> int:
    return num_sequences.bit_length()
