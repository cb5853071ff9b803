"""The global request buffer (StarSD 4.1): sequences that owe a proposal, rows, and the draft step in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from typing import NamedTuple

from starspec.errors import OurBug
from starspec.hub.drafter import Drafter, StepInput
from starspec.hub.scheduler import DraftScheduler
from starspec.hub.sequence import DraftSequence
from starspec.ids import LinkId
from starspec.policy.draft_batch import DraftStep, ScheduledSequence, TagKey


class GrownStep(NamedTuple):
    """A draft step that was forwarded."""

    draft_step: DraftStep
    sequences: list[DraftSequence]  # in the order of the draft step
    num_wasted: int  # nodes drafted ahead that were lost when rows were evicted for it


class RequestBuffer:
    """Sequences that owe a proposal, in order of arrival, and the rows that sequences grow in.

    Args:
        drafter: owns the rows.
        scheduler: chooses who grows.
    """

    def __init__(self, drafter: Drafter, scheduler: DraftScheduler) -> None:
        self.scheduler = scheduler
        self._drafter = drafter
        self._waiting: dict[TagKey, DraftSequence] = {}  # in order of arrival
        self._holders: dict[TagKey, DraftSequence] = {}  # sequences with a row
        self._in_flight: list[DraftSequence] = []

    @property
    def has_waiting(self) -> bool:
        """Whether `run_step` has something to do."""
        return bool(self._waiting)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting_targets(self) -> set[LinkId]:
        """Targets with sequences that wait."""
        return {key.link_id for key in self._waiting}

    def waiting_of(self, targets: Set[LinkId]) -> list[DraftSequence]:
        """Sequences of these targets that wait, in order of arrival."""
        return [sequence for key, sequence in self._waiting.items() if key.link_id in targets] if targets else []

    @property
    def num_rows(self) -> int:
        """Rows of the drafter: so many sequences keep their K/V at the same time."""
        return len(self._holders) + self._drafter.num_free_rows

    def update(self, sequence: DraftSequence) -> None:
        """Let the sequence wait for draft steps if it owes a proposal; else it does not wait.

        One that waits already keeps its place. A sequence waits only when its target has sent everything that the
        drafter needs.

        Effects: a sequence that can never grow again gives its row back.
        """
        if not sequence.room:
            self._free(sequence)
        is_waiting = self._is_due(sequence)
        if is_waiting:
            self._waiting[sequence.key] = sequence
        else:
            self._waiting.pop(sequence.key, None)
        self.scheduler.note_change(sequence, is_waiting=is_waiting)

    def remove(self, sequence: DraftSequence) -> int:
        """Forget the sequence and free its row. Returns: the number of nodes drafted ahead that are lost."""
        self.scheduler.note_end(sequence)
        self._waiting.pop(sequence.key, None)
        return self._free(sequence)

    def run_step(self, now: float) -> GrownStep:
        """Choose the next draft step and forward it. Its sequences are in flight until `end_step`.

        Raises: whatever the drafter raises; the sequences are then still in flight.
        """
        draft_step = self.scheduler.choose(self._waiting, self._holders, now)
        if not draft_step.sequences:
            raise OurBug(f"nothing was chosen for a draft step, of {list(self._waiting)}")
        num_wasted = sum([self._free(self._holders[key]) for key in draft_step.evicted])
        has_prefill = draft_step.has_prefill
        self._drafter.grow([self._start(scheduled, now, has_prefill) for scheduled in draft_step.sequences])
        for sequence in self._in_flight:
            sequence.end_step()
        self.scheduler.note_step(draft_step, self._in_flight, self._waiting)
        return GrownStep(draft_step, self._in_flight, num_wasted)

    def end_step(self) -> list[DraftSequence]:
        """End the draft step in flight. Returns: its sequences."""
        ended, self._in_flight = self._in_flight, []
        return ended

    def check_integrity(self, sequences: Iterable[DraftSequence]) -> None:
        """Raises: OurBug unless those that wait, and the rows, are those of exactly these sequences."""
        sequences = list(sequences)
        self._drafter.check_integrity(sequences)
        if self._waiting != {sequence.key: sequence for sequence in sequences if self._is_due(sequence)}:
            raise OurBug(f"the buffer holds {list(self._waiting)}, and others wait")
        if self._holders != {sequence.key: sequence for sequence in sequences if sequence.row is not None}:
            raise OurBug(f"rows are known of {list(self._holders)}, and others hold one")
        if Counter(key.link_id for key in self._waiting) != self.scheduler.num_waiting:
            raise OurBug(f"{list(self._waiting)} wait, and the scheduler knows of {self.scheduler.num_waiting}")
        if self._waiting:
            quick = self.scheduler.plan(self._waiting, self._holders)
            if quick != self.scheduler.plan_by_policy(self._waiting, self._holders):
                raise OurBug(f"{quick} is not the draft step that the policies would choose")

    def _is_due(self, sequence: DraftSequence) -> bool:
        return sequence.round.request is not None and self._drafter.can_grow(sequence)

    def _start(self, scheduled: ScheduledSequence, now: float, has_prefill: bool) -> StepInput:
        sequence = self._waiting[scheduled.key]
        self._in_flight.append(sequence)
        if sequence.row is None:
            self._drafter.lease(sequence)
            self._holders[sequence.key] = sequence
        sequence.start_step(now, has_prefill=has_prefill)
        return StepInput(sequence, scheduled.num_tokens)

    def _free(self, sequence: DraftSequence) -> int:
        """Returns: the number of nodes drafted ahead that are lost with the row."""
        num_wasted = sequence.num_ahead
        self._drafter.free(sequence)
        self._holders.pop(sequence.key, None)
        return num_wasted
