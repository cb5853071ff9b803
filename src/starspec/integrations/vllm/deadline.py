"""How long a step may wait for proposals: as long as the last rounds took, and never as long as would not pay.

A round of more layers, or of more rows, than one that was timed may take that much longer, and no longer: a hub drafts
no slower for many at once than for one after the other. Only the rounds nearest to what is asked for are scaled up so.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

FIRST_S: Final = 0.25  # before any proposal has been timed
MIN_S: Final = 0.005
NUM_ROUNDS: Final = 16  # so many are remembered
SLACK: Final = 1.5  # times as long: rounds vary
MAX_STEPS: Final = 2.0  # vLLM steps: a draft that takes longer than so many is slower than decoding


class Asked(NamedTuple):
    """What a round asks of a hub."""

    num_layers: int  # tokens of the longest draft
    num_rows: int


class Deadline:
    """Seconds, learnt from what rounds took.

    Args:
        fixed_s: the operator's own; None = learnt.
    """

    def __init__(self, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s
        self._rounds: deque[tuple[Asked, float]] = deque(maxlen=NUM_ROUNDS)
        self._step_s: float | None = None

    def seconds(self, asked: Asked) -> float:
        """For the wait that follows."""
        if self._fixed_s is not None:
            return self._fixed_s
        most_s = FIRST_S if self._step_s is None else MAX_STEPS * self._step_s
        return max(MIN_S, min(self._learnt_s(asked), most_s))

    def note_round(self, asked: Asked, took_s: float) -> None:
        """The awaited proposals took so long; of those that were late, at least so long."""
        self._rounds.append((asked, took_s))

    def forget_rounds(self) -> None:
        """The next hub may be another."""
        self._rounds.clear()

    def note_step(self, step_s: float) -> None:
        """vLLM took so long between two calls. The shortest lately counts: a long one had a prompt to read."""
        known_s = step_s if self._step_s is None else self._step_s
        self._step_s = min(step_s, 1.05 * known_s)

    def _learnt_s(self, asked: Asked) -> float:
        if not self._rounds:
            return FIRST_S
        least = min(_growth(before, asked) for before, _ in self._rounds)
        nearest_s = least * max(took_s for before, took_s in self._rounds if _growth(before, asked) == least)
        return SLACK * max(nearest_s, *(took_s for _, took_s in self._rounds))  # a busy hub delays small ones too


def _growth(before: Asked, now: Asked) -> float:
    """At most so many times as long as one round another may take, as far as it asks for more."""
    return max(1.0, now.num_layers / before.num_layers) * max(1.0, now.num_rows / before.num_rows)
