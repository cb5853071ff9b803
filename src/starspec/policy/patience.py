"""Whoever is late again and again is asked ever more rarely. No I/O and no clock of its own.

Steps are those of the target: rounds of ours, steps of vLLM.
"""

from __future__ import annotations

from math import inf
from typing import Final

MAX_MISSES: Final = 3  # in a row, before the first pause
FIRST_PAUSE, LONGEST_PAUSE = 16, 256  # steps
LONGEST_PAUSE_S: Final = 5.0  # a pause of more than FIRST_PAUSE steps ends after this: what was slow may be quick again
FIRST_READING_S: Final = 5.0  # an `Open` unanswered for longer may have been lost; each one after it gets twice as long
CATCHING_UP_S: Final = 1.0  # so may be the answer to what ended a pause


class Patience:
    """With one tag, or with the hub: waits in vain are counted, and pauses follow.

    After the first pause one more wait in vain is enough for the next, which is twice as long: what a hopeless case
    costs is one deadline in LONGEST_PAUSE steps, or LONGEST_PAUSE_S. One proposal in time and all is forgotten. One
    wait in vain between two of those may be forgiven. Meanwhile ever less is asked for: a short draft may come in time.
    """

    def __init__(self) -> None:
        self._num_misses = 0  # in a row
        self._has_forgiven = False
        self._num_passed = self._pause = 0  # steps of the present pause
        self._next_pause = FIRST_PAUSE
        self._ends_s = inf

    @property
    def is_pausing(self) -> bool:
        return self._num_passed < self._pause

    @property
    def has_missed(self) -> bool:
        """Whether the last wait was in vain."""
        return self._num_misses > 0

    def fitting(self, num_steps: int) -> int:
        """Of a draft so deep, what may yet come in time: half of it for each wait in vain, but something."""
        return max(min(num_steps, 1), num_steps >> self._num_misses)

    def pass_step(self, now: float) -> None:
        """A step of the pause goes by."""
        self._num_passed += 1
        if self._num_passed >= FIRST_PAUSE and now >= self._ends_s:
            self._pause = 0

    def note_in_time(self) -> None:
        self._num_misses, self._pause = 0, 0
        self._next_pause, self._has_forgiven = FIRST_PAUSE, False

    def forgive(self) -> bool:
        """Returns: whether this wait in vain, for which there is a reason, need not count."""
        is_first, self._has_forgiven = not self._has_forgiven, True
        return is_first

    def note_miss(self, now: float) -> None:
        self._num_misses += 1
        if self._num_misses >= MAX_MISSES:
            self._num_misses = MAX_MISSES - 1
            self._num_passed, self._pause, self._ends_s = 0, self._next_pause, now + LONGEST_PAUSE_S
            self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)


class Reading:
    """How long one may stay unanswered by a hub that has to read first: a long prompt, or what a pause has left.

    The answer may be lost. An `Open` that says the same again costs a hub that is still reading nothing: it goes on
    where it is.
    """

    def __init__(self) -> None:
        self._patience_s = FIRST_READING_S
        self._until_s = inf

    def begin(self, now: float) -> None:
        """Of a prompt."""
        self._until_s = now + self._patience_s
        self._patience_s *= 2

    def begin_catching_up(self, now: float) -> None:
        """Of what it was told in a pause."""
        self._until_s = now + CATCHING_UP_S

    def end(self) -> None:
        self._patience_s, self._until_s = FIRST_READING_S, inf

    def is_overdue(self, now: float) -> bool:
        return now > self._until_s
