"""ExSpec's scheduler: rounds over sequences of equal length, chosen from a window that is larger than the batch.

"Batch Speculative Decoding Done Right", section 3.3 and algorithm 3. The engine's sequences are the pool. Those with
cache rows are the window, of size W. A round takes up to B sequences of the window. If `min_group` of them or more have
the same length, it takes those and realigns nothing; else it takes the first B and realigns them. The paper does not
say how many make a group.

One thing differs from the paper. There, a sequence of a unique length may wait without bound (its table 3: a P99 of
134 s, against 19 s of EqSpec). Here a sequence is passed over for at most `max_passed_over` + ceil(W / B) steps. None
gives the paper's behaviour.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from starspec.config import MIN_GROUP
from starspec.policy.target_batch import Candidate, ScheduleSnapshot, StepPlan, first_prefill, keys_of, ready


@dataclass(frozen=True, slots=True)
class SameLengthPool:
    """Admits prompts sorted by length; runs rounds over sequences of equal length.

    Args:
        batch_size: B, the maximum number of sequences in a round.
        max_passed_over: steps after which a sequence goes first; None = no bound.
        min_group: sequences of one length that run without others; a whole batch does in any case.
    """

    batch_size: int
    max_passed_over: int | None
    min_group: int = MIN_GROUP

    def choose(self, snapshot: ScheduleSnapshot) -> StepPlan:
        """Refill the window, forward one prefill chunk, and run a round over one group.

        The window is the set of sequences with cache rows; `num_free_rows` bounds it.
        """
        admit = keys_of(self._refill(snapshot.waiting)[: snapshot.num_free_rows])
        return StepPlan(admit, first_prefill(snapshot, admit), keys_of(self._group(ready(snapshot.running))))

    def _refill(self, waiting: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The order in which prompts enter the window: overdue ones, then by length."""
        overdue, others = self._split(waiting)
        return (*overdue, *sorted(others, key=lambda each: each.num_tokens))

    def _group(self, window: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The sequences of one round: the largest group of one length, of several the oldest's; else B, or all.

        Overdue sequences are in it, as many as fit.
        """
        size = min(self.batch_size, len(window))
        overdue, others = self._split(window)
        groups = [group[:size] for group in _groups_of_one_length((*overdue, *others))]
        largest = max((each for each in groups if set(overdue[:size]) <= set(each)), key=len, default=())
        return largest if len(largest) >= min(size, self.min_group) else (*overdue, *others)[:size]

    def _split(self, candidates: tuple[Candidate, ...]) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
        """The overdue candidates, the longest wait first; and the others, oldest first."""
        if self.max_passed_over is None:
            return (), candidates
        limit = self.max_passed_over
        overdue = sorted(
            (each for each in candidates if each.num_passed_over >= limit), key=lambda each: -each.num_passed_over
        )
        return tuple(overdue), tuple(each for each in candidates if each.num_passed_over < limit)


def _groups_of_one_length(candidates: tuple[Candidate, ...]) -> list[tuple[Candidate, ...]]:
    """Candidates grouped by length, in the order of their first members."""
    groups: defaultdict[int, list[Candidate]] = defaultdict(list)
    for each in candidates:
        groups[each.num_tokens].append(each)
    return [tuple(group) for group in groups.values()]
