"""How often a length policy is asked: not so often that choosing takes a noticeable share of the time.

To weigh all lengths takes some tenths of a millisecond. That is nothing beside a target's step of 100 ms, and too much
beside one of 10 ms. What a policy knows changes little from one round to the next, so its last answer may serve for a
few more rounds. A policy that answers quickly is asked every round.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from starspec.policy.length.snapshot import Choice, LengthPolicy, RoundSnapshot

SHARE: Final = 0.01  # of the time: what choosing may take
MAX_REUSED: Final = 4  # rounds in a row for which an answer serves again


class PacedChoices:
    """The choices of one policy for one drafter, from round to round.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, policy: LengthPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._num_reused = 0  # in a row
        self.forget()

    def forget(self) -> None:
        """Drop the last answer, and what it was about."""
        self._about: Sequence[Hashable] = ()
        self._chosen: list[Choice] = []
        self._next_s = float("-inf")  # before it, the last answer serves again

    def choose(
        self, about: Sequence[Hashable], snapshot: Callable[[], RoundSnapshot], *, is_urgent: bool = False
    ) -> list[Choice]:
        """As LengthPolicy. The budgets of an answer that serves again may be longer than what remains of a sequence.

        A trial is for one round, so its answer never serves again.

        Args:
            about: the sequences, their drafter, and whatever else makes an answer useless for another round.
            snapshot: makes the snapshot, if the policy is asked.
            is_urgent: ask it in any case.
        """
        now = self._clock()
        if now < self._next_s and not is_urgent and self._num_reused < MAX_REUSED and about == self._about:
            self._num_reused += 1
            return self._chosen
        chosen = self._policy.choose(snapshot())
        is_trial = any(each.reason == "probe" for each in chosen)
        self._about, self._chosen, self._num_reused = about, chosen, 0
        self._next_s = now if is_trial else now + (self._clock() - now) / SHARE
        return chosen
