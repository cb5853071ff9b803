"""Chooses the sequences of the next draft step, and learns from the draft steps before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from starspec.config import MaxBatch
from starspec.hub.drafter import Drafter
from starspec.hub.sequence import DraftSequence
from starspec.ids import LinkId
from starspec.policy.batch_limit import BatchLimit
from starspec.policy.capacity import DraftStepCost
from starspec.policy.draft_batch import (
    DraftStep,
    DraftStepSnapshot,
    ScheduledSequence,
    SequenceView,
    TagKey,
    choose_step,
    is_prefill,
)
from starspec.policy.draft_step_times import DraftStepTimes
from starspec.policy.estimators import DecayedMean
from starspec.policy.fairness import DeficitRoundRobin, RequestStanding, choose_fairly, first_in_order
from starspec.policy.step_shares import EVERYTHING, AskingTags, AskingTarget, StepShares, step_shares

SIZE_WEIGHT: Final = 0.1  # of the newest draft step, in what each sequence of a target adds to the size of one


class DraftScheduler:
    """Asks the policies which waiting sequences grow next, and skips them where the answer is plain.

    Args:
        drafter: owns the rows.
        prefill_chunk: prompt tokens in one draft step, at most.
        max_batch: sequences in one draft step, at most.
        is_fair: whether targets have shares of draft steps, and take turns when not all can grow; else first come,
            first served.
    """

    def __init__(self, drafter: Drafter, *, prefill_chunk: int, max_batch: MaxBatch, is_fair: bool) -> None:
        self._drafter = drafter
        self._prefill_chunk = prefill_chunk
        self._max_batch = max_batch
        self._is_fair = is_fair
        self._round_robin = DeficitRoundRobin()
        self._times, self._limit = DraftStepTimes(), BatchLimit()
        self._asking = AskingTags()
        self._size_each: dict[LinkId, DecayedMean] = {}  # what a decoding sequence of a target adds to a draft step
        self._repeating: Sequence[DraftSequence] = ()  # sequences that the next draft step has again; () = not known

    def join(self, link_id: LinkId, weight: float) -> None:
        """A target with this weight connects."""
        self._round_robin = self._round_robin.with_weight(link_id, weight)
        self._size_each[link_id] = DecayedMean(SIZE_WEIGHT, prior=2.0)

    def leave(self, link_id: LinkId) -> None:
        """A target has gone, and all its sequences before it."""
        self._round_robin = self._round_robin.without(link_id)
        del self._size_each[link_id]

    @property
    def weights(self) -> Mapping[LinkId, float]:
        """Weights of all targets."""
        return self._round_robin.weights

    @property
    def num_waiting(self) -> Mapping[LinkId, int]:
        """Sequences of each target that wait."""
        return self._asking.num_waiting

    @property
    def who_shares(self) -> Set[LinkId]:
        """Targets that ask, and so have shares of draft steps; none if the hub is not fair."""
        return self._asking.num_asking.keys() if self._is_fair else frozenset()

    @property
    def step_cost(self) -> DraftStepCost | None:
        """Cost of a draft step without prefill; None before the first."""
        return self._times.cost

    @property
    def max_sequences(self) -> int | None:
        """Sequences in the next draft step, at most; None = all that wait."""
        return self._limit.max_sequences if self._max_batch == "auto" else self._max_batch

    def choose(
        self, waiting: Mapping[TagKey, DraftSequence], holders: Mapping[TagKey, DraftSequence], now: float
    ) -> DraftStep:
        """Choose the next draft step.

        Args:
            waiting: sequences that owe a proposal and can grow, in order of arrival.
            holders: sequences that hold a row.
        """
        self._asking.forget_late(now)
        draft_step, self._round_robin = self.plan(waiting, holders)
        return draft_step

    def plan(
        self, waiting: Mapping[TagKey, DraftSequence], holders: Mapping[TagKey, DraftSequence]
    ) -> tuple[DraftStep, DeficitRoundRobin]:
        """As `choose`, without effects. Returns: the draft step, and the state of the round robin after it."""
        if self._is_anyone_limited():
            return self.plan_by_policy(waiting, holders)
        everyone = self._everyone(waiting)
        if everyone is not None:
            return everyone, self._round_robin
        if not self._repeating:
            return self.plan_by_policy(waiting, holders)
        draft_step = DraftStep(
            tuple(ScheduledSequence(each.key, self._drafter.num_missing(each), False) for each in self._repeating)
        )
        if not self._is_fair:
            return draft_step, self._round_robin
        chosen = zip(self._repeating, draft_step.sequences, strict=True)
        return draft_step, self._round_robin.charged(part for each, part in chosen if not each.round.is_urgent)

    def plan_by_policy(
        self, waiting: Mapping[TagKey, DraftSequence], holders: Mapping[TagKey, DraftSequence]
    ) -> tuple[DraftStep, DeficitRoundRobin]:
        """As `plan`, always by the policies. While all can grow, nobody is charged for it."""
        snapshot = self._snapshot(waiting, holders)
        if self._is_fair and snapshot.is_contended:
            return choose_fairly(snapshot, self._round_robin)
        return choose_step(snapshot), self._round_robin

    def note_change(self, sequence: DraftSequence, *, is_waiting: bool) -> None:
        """This sequence waits, or does not wait: the next draft step may be another."""
        self._repeating = ()
        request, proposal = sequence.round.request, sequence.round.in_verification
        if is_waiting:
            self._asking.wait(sequence.key)
        elif request is not None:  # it cannot grow before its target has sent more
            self._asking.go_away(sequence.key, request.arrived_s)
        elif proposal is not None:
            self._asking.go_away(sequence.key, proposal.since_s)
        else:
            self._asking.stop(sequence.key)

    def note_end(self, sequence: DraftSequence) -> None:
        """This sequence has ended, or was dropped."""
        self._repeating = ()
        self._asking.stop(sequence.key)

    def note_step(
        self, draft_step: DraftStep, grown: Sequence[DraftSequence], waiting: Mapping[TagKey, DraftSequence]
    ) -> None:
        """These sequences have grown in the draft step."""
        self._learn_sizes(draft_step)
        if not self._repeating and not draft_step.has_prefill:
            self._repeating = self._next_if_unchanged(grown, waiting)

    def note_time(self, draft_step: DraftStep, seconds: float) -> None:
        """The draft step took so long. The limits of later draft steps follow that."""
        self._times.add(draft_step, seconds)
        if draft_step.has_prefill:
            return
        before = self._limit.max_sequences
        self._limit.add(len(draft_step.sequences), seconds)
        if before != self._limit.max_sequences:
            self._repeating = ()

    def _everyone(self, waiting: Mapping[TagKey, DraftSequence]) -> DraftStep | None:
        """All waiting sequences, if each holds a row and none needs prefill; else None, and the policies decide."""
        most = self.max_sequences
        if most is not None and len(waiting) > most:
            return None
        sequences: list[ScheduledSequence] = []
        for sequence in waiting.values():
            num_missing = self._drafter.num_missing(sequence)
            if sequence.row is None or is_prefill(num_missing, sequence.is_prefilled):
                return None
            sequences.append(ScheduledSequence(sequence.key, num_missing, False, not sequence.tree.is_rooted))
        return DraftStep(tuple(sequences))

    def _next_if_unchanged(
        self, grown: Sequence[DraftSequence], waiting: Mapping[TagKey, DraftSequence]
    ) -> Sequence[DraftSequence]:
        """Which sequences are in the next draft step if nothing changes. The last one had no prefill, nor room for all.

        Returns: the sequences that have just grown, in the order of the next draft step; () if others may be in it.
        """
        if len(grown) == len(waiting) or len(grown) != self.max_sequences:
            return ()  # there is room for all, or room for more
        # a sequence without a root was to take over a prefix, and may have lost the row that holds it
        if not all(sequence.tree.is_rooted for sequence in grown):
            return ()
        order = list(waiting.values())
        if self._is_fair:
            standings = [RequestStanding(each.round.is_urgent, each.round.has_started) for each in order]
            order = [order[index] for index in first_in_order(standings)]
        order = order[: self.max_sequences]
        return order if {each.key for each in grown} == {each.key for each in order} else ()

    def _snapshot(
        self, waiting: Mapping[TagKey, DraftSequence], holders: Mapping[TagKey, DraftSequence]
    ) -> DraftStepSnapshot:
        num_free = self._drafter.num_free_rows
        views = [self._view(sequence) for sequence in _that_may_grow(waiting, len(holders) + num_free)]
        # idle sequences matter only when rows are short, and there may be many of them
        victims = holders.values() if sum(not each.has_row for each in views) > num_free else ()
        shares = self._shares()
        if self._is_anyone_limited():
            views.sort(key=lambda each: not each.has_started)  # half a proposal is of no use
        beside = self._times.chunk_beside(self._prefill_chunk, shares.equal_s)
        return DraftStepSnapshot(
            waiting=tuple(views),
            idle=tuple(self._view(sequence) for sequence in victims if sequence.key not in waiting),
            num_free_rows=num_free,
            prefill_chunk=beside if self._is_prefill_shared(views) else self._prefill_chunk,
            chunk_beside=beside,
            most=shares.most,
            max_sequences=self.max_sequences,
            weights=self.weights,
        )

    def _shares(self) -> StepShares:
        """How much of the next draft step each target may have."""
        num_asking, cost = self._asking.num_asking, self._times.size_cost
        if not self._is_fair or cost is None:
            return EVERYTHING
        asking = {
            target: AskingTarget(num, self._size_each[target].value, self.weights[target])
            for target, num in num_asking.items()
        }
        return step_shares(asking, cost)

    def _is_anyone_limited(self) -> bool:
        """Whether some sequences that wait may not be in the next draft step, because other targets ask."""
        num_waiting = self._asking.num_waiting
        if max(num_waiting.values(), default=0) < 2:  # each target has a place: no need to weigh that
            return False
        return any(num_waiting[target] > most for target, most in self._shares().most.items())

    def _is_prefill_shared(self, views: Sequence[SequenceView]) -> bool:
        """Whether another target than one whose prompts wait will be back soon, and wait for the end of a prefill."""
        prefilling = {each.key.link_id for each in views if each.is_prefill}
        return self._is_fair and any(prefilling - {target} for target in self._asking.num_away)

    def _learn_sizes(self, draft_step: DraftStep) -> None:
        num_tokens, num_sequences = Counter[LinkId](), Counter[LinkId]()
        for each in draft_step.sequences:
            if not each.is_prefill:
                num_tokens[each.key.link_id] += each.num_tokens
                num_sequences[each.key.link_id] += 1
        for target, num in num_sequences.items():
            self._size_each[target].add(1.0 + num_tokens[target] / num)

    def _view(self, sequence: DraftSequence) -> SequenceView:
        num_missing = self._drafter.num_missing(sequence)
        has_to_prefill = is_prefill(num_missing, sequence.is_prefilled)
        request = sequence.round.request
        return SequenceView(
            sequence.key,
            sequence.row is not None,
            num_missing,
            has_to_prefill,
            sequence.last_used_s,
            is_delayed=request is not None and request.is_delayed,
            has_started=sequence.round.has_started,
            is_urgent=sequence.round.is_urgent,
            next_block=sequence.committed.next_block(len(sequence.token_ids) - num_missing) if has_to_prefill else None,
            is_committed=not sequence.tree.is_rooted,
        )


def _that_may_grow(waiting: Mapping[TagKey, DraftSequence], num_rows: int) -> Iterator[DraftSequence]:
    """Sequences that may be in the next draft step, in the same order.

    One without a row needs one. So only the first of each target that would need all rows, and one more, count: a
    target may have thousands, and a look at a sequence is not free.
    """
    num_seeking = Counter[LinkId]()
    for sequence in waiting.values():
        if sequence.row is None:
            num_seeking[sequence.key.link_id] += 1
            if num_seeking[sequence.key.link_id] > num_rows + 1:
                continue
        yield sequence
