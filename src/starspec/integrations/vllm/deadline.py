"""How long a step may wait for proposals: as long as the last rounds took, and never as long as would not pay.

A round of more layers, or of more rows, than one that was timed may take that much longer, and no longer: a hub drafts
no slower for many at once than for one after the other. Only the rounds nearest to what is asked for are scaled up so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from starspec.integrations.vllm.round_cost import Round

FIRST_S: Final = 0.25  # before any proposal has been timed
MIN_S: Final = 0.005
NUM_ROUNDS: Final = 16  # so many are remembered
SLACK: Final = 1.5  # times as long: rounds vary
MAX_STEPS: Final = 2.0  # vLLM steps: a draft that takes longer than so many is slower than decoding


class Deadline:
    """Seconds, learnt from what rounds took.

    Args:
        fixed_s: the operator's own; None = learnt.
    """

    def __init__(self, fixed_s: float | None = None) -> None:
        self._fixed_s = fixed_s
        self._rounds: deque[Round] = deque(maxlen=NUM_ROUNDS)
        self._step_s: float | None = None

    def seconds(self, lengths: Sequence[int]) -> float:
        """For a wait for drafts of so many tokens each."""
        if self._fixed_s is not None:
            return self._fixed_s
        most_s = FIRST_S if self._step_s is None else MAX_STEPS * self._step_s
        return max(MIN_S, min(self._learnt_s(lengths), most_s))

    def note_round(self, round_: Round) -> None:
        """The awaited proposals took so long; where some were late, at least so long."""
        self._rounds.append(round_)

    def forget_rounds(self) -> None:
        """The next hub may be another."""
        self._rounds.clear()

    def note_step(self, step_s: float) -> None:
        """vLLM took so long between two calls. The shortest lately counts: a long one had a prompt to read."""
        known_s = step_s if self._step_s is None else self._step_s
        self._step_s = min(step_s, 1.05 * known_s)

    def _learnt_s(self, lengths: Sequence[int]) -> float:
        if not self._rounds:
            return FIRST_S
        growths = [_growth(each.lengths, lengths) for each in self._rounds]
        least = min(growths)
        nearest_s = max(each.seconds for each, growth in zip(self._rounds, growths, strict=True) if growth == least)
        longest_s = max(each.seconds for each in self._rounds)  # a busy hub delays small ones too
        return SLACK * max(least * nearest_s, longest_s)


def _growth(before: Sequence[int], now: Sequence[int]) -> float:
    """At most so many times as long as one round another may take, as far as it asks for more."""
    return max(1.0, max(now) / max(before)) * max(1.0, len(now) / len(before))
