"""How long a step may wait for proposals: as long as the last rounds took, and never as long as would not pay."""

from __future__ import annotations

from collections import deque
from typing import Final

FIRST_S: Final = 0.25  # before any proposal has been timed
MIN_S: Final = 0.005
NUM_ROUNDS: Final = 16  # the longest of so many counts
SLACK: Final = 1.5  # times as long: rounds vary
MAX_STEPS: Final = 2.0  # vLLM steps: a draft that takes longer than so many is slower than decoding


class Deadline:
    """Seconds, learnt from what rounds took.

    Args:
        fixed_s: the operator's own; None = learnt.
    """

    def __init__(self, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s
        self._took_s: deque[float] = deque(maxlen=NUM_ROUNDS)
        self._step_s: float | None = None

    @property
    def seconds(self) -> float:
        """For the next wait."""
        if self._fixed_s is not None:
            return self._fixed_s
        learnt_s = SLACK * max(self._took_s) if self._took_s else FIRST_S
        most_s = FIRST_S if self._step_s is None else MAX_STEPS * self._step_s
        return max(MIN_S, min(learnt_s, most_s))

    def note_round(self, took_s: float) -> None:
        """The awaited proposals took so long; of those that were late, at least so long."""
        self._took_s.append(took_s)

    def note_step(self, step_s: float) -> None:
        """vLLM took so long between two calls. The shortest lately counts: a long one had a prompt to read."""
        known_s = step_s if self._step_s is None else self._step_s
        self._step_s = min(step_s, 1.05 * known_s)
