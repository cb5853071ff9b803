"""ExSpec's scheduling: rounds over sequences of one length, chosen from a window that is wider than the batch.

Batch Speculative Decoding Done Right, section 3.3 and algorithm 3. The engine's sequences are the pool; those that hold
cache rows are the window of W. A round takes B of them: of one length if there are as many, so that nothing needs to be
realigned; else the first B of the window, realigned.

One thing is not the paper's. There a sequence whose length nobody shares may wait for ever (its table 3: a P99 of 134 s
beside EqSpec's 19 s). Here no sequence is passed over more than `max_passed_over` steps, and a few that a turn takes:
ceil(W / B). None gives the paper's behaviour.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from starspec.policy.target_batch import Candidate, ScheduleSnapshot, StepPlan, first_prefill, keys_of


@dataclass(frozen=True, slots=True)
class SameLengthPool:
    """Prompts sorted by length into a window, rounds over groups of one length.

    Args:
        batch_size: B, sequences of a round, at most.
        max_passed_over: steps after which a sequence goes first; None = no bound.
    """

    batch_size: int
    max_passed_over: int | None

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan:
        """Refill the window, forward one prefill chunk, and run a round over one group.

        The window is whoever holds a row: `num_free_rows` bounds it.
        """
        admit = keys_of(self._refill(snapshot.waiting)[: snapshot.num_free_rows])
        return StepPlan(admit, first_prefill(snapshot, admit), keys_of(self._group(snapshot.running)))

    def _refill(self, waiting: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """In the order in which prompts enter the window: neighbours are of similar length."""
        overdue, others = self._split(waiting)
        return (*overdue, *sorted(others, key=lambda each: each.num_tokens))

    def _group(self, window: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The sequences of one round: B, or all if there are fewer."""
        size = min(self.batch_size, len(window))
        overdue, others = self._split(window)
        for group in _groups_of_one_length((*overdue, *others)):
            if len(group) >= size and set(overdue[:size]) <= set(group[:size]):
                return group[:size]
        return (*overdue, *others)[:size]

    def _split(self, candidates: tuple[Candidate, ...]) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
        """Those who waited too long, the longest first; and the others, oldest first."""
        if self.max_passed_over is None:
            return (), candidates
        limit = self.max_passed_over
        overdue = sorted(
            (each for each in candidates if each.num_passed_over >= limit), key=lambda each: -each.num_passed_over
        )
        return tuple(overdue), tuple(each for each in candidates if each.num_passed_over < limit)


def _groups_of_one_length(candidates: tuple[Candidate, ...]) -> list[tuple[Candidate, ...]]:
    """By length, the group of the first candidate first."""
    groups: defaultdict[int, list[Candidate]] = defaultdict(list)
    for each in candidates:
        groups[each.num_tokens].append(each)
    return [tuple(group) for group in groups.values()]
