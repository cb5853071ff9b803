"""Whoever is late again and again is asked ever more rarely."""

from __future__ import annotations

from typing import Final

MAX_MISSES: Final = 3  # in a row, before the first pause
FIRST_PAUSE, LONGEST_PAUSE = 16, 256  # steps


class Patience:
    """With one request's tag, or with the hub: waits in vain are counted, and pauses follow.

    After the first pause one more wait in vain is enough for the next, which is twice as long: what a hopeless case
    costs is one deadline in LONGEST_PAUSE steps. One proposal in time and all is forgotten.
    """

    def __init__(self) -> None:
        self._num_misses = 0  # in a row
        self._num_steps_left = 0
        self._next_pause = FIRST_PAUSE

    @property
    def is_pausing(self) -> bool:
        return self._num_steps_left > 0

    def pass_step(self) -> None:
        """A step of the pause goes by."""
        self._num_steps_left -= 1

    def note_in_time(self) -> None:
        self._num_misses, self._next_pause = 0, FIRST_PAUSE

    def note_in_vain(self) -> None:
        self._num_misses += 1
        if self._num_misses >= MAX_MISSES:
            self._num_misses = MAX_MISSES - 1
            self._num_steps_left = self._next_pause
            self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
