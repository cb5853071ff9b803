"""The requests of a target that have not ended: who waits, who has a cache row, and what a scheduler sees of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from starspec.cache.kv_cache import KVCache
from starspec.engine.sequence import SequenceState, TargetSequence
from starspec.ids import PeerId, RequestId, RequestKey
from starspec.policy.queue_turns import ChunkTurns, Sender, in_turns, who_gives_way
from starspec.policy.target_batch import Candidate, ScheduleSnapshot, StepPlan, passed_over


class RequestTable:
    """The sequences, in order of arrival.

    Args:
        cache: where they lease rows; nobody else does.
        num_rows: that they may lease. The cache may have more.
        max_num_queued: requests that may wait beside those for which a row is free.
    """

    def __init__(self, cache: KVCache, num_rows: int, max_num_queued: int) -> None:
        self._cache = cache
        self._num_rows = num_rows
        self._max_num_queued = max_num_queued
        self._sequences: dict[RequestKey, TargetSequence] = {}
        self._chunk_turns = ChunkTurns()

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, key: RequestKey) -> TargetSequence:
        return self._sequences[key]

    def get(self, key: RequestKey) -> TargetSequence | None:
        return self._sequences.get(key)

    @property
    def all(self) -> list[TargetSequence]:
        return list(self._sequences.values())

    @property
    def with_rows(self) -> list[TargetSequence]:
        return [each for each in self._sequences.values() if each.row is not None]

    @property
    def num_running(self) -> int:
        return len(self.with_rows)

    @property
    def num_waiting(self) -> int:
        return len(self._sequences) - self.num_running

    @property
    def num_free_rows(self) -> int:
        """Rows that may still be leased."""
        return min(self._cache.num_free_rows, self._num_rows - self.num_running)

    @property
    def num_queued(self) -> int:
        """Requests that will still wait after the next step's admissions."""
        return max(0, self.num_waiting - self.num_free_rows)

    @property
    def has_room(self) -> bool:
        """Whether the queue is below its limit. A request for which a row is free is not in the queue."""
        return self.num_queued < self._max_num_queued

    @property
    def max_num_requests(self) -> int:
        """Requests that can be held at once, running and waiting."""
        return min(self._cache.num_rows, self._num_rows) + self._max_num_queued

    @property
    def peers(self) -> set[PeerId]:
        return {key.peer for key in self._sequences}

    def requests_of(self, peer: PeerId) -> list[RequestId]:
        """The ids of the peer's requests, oldest first."""
        return [key.request_id for key in self._sequences if key.peer == peer]

    def who_gives_way(self, newcomer: Sender) -> RequestKey | None:
        """The waiting request that leaves a full queue for one of this sender; None if none does."""
        waiting = [each for each in self._sequences.values() if each.row is None]
        place = who_gives_way([each.sender for each in waiting], newcomer)
        return None if place is None else waiting[place].key

    def sorted_by_row(self, keys: Iterable[RequestKey]) -> list[TargetSequence]:
        """The running ones of these sequences in the order of their cache rows.

        So neighbours in a batch are neighbours in memory. Those that were lost since they were chosen are left out.
        """
        sequences = [self._sequences[key] for key in keys if key in self._sequences]
        running = [each for each in sequences if each.state is SequenceState.RUNNING]
        return sorted(running, key=lambda sequence: -1 if sequence.row is None else sequence.row)

    # ---------------------------------------------------------------- changes

    def add(self, sequence: TargetSequence) -> None:
        """A request waits for a row."""
        self._sequences[sequence.key] = sequence

    def admit(self, keys: Iterable[RequestKey], now: float) -> list[TargetSequence]:
        """Give each of them a row. Raises: NoFreeRow."""
        admitted = [self._sequences[key] for key in keys]
        for sequence in admitted:
            sequence.admit(self._cache.lease(), now)
        return admitted

    def note_chunk(self, sequence: TargetSequence) -> None:
        """A chunk of its prompt was launched."""
        self._chunk_turns.note(sequence.sender)

    def release(self, sequence: TargetSequence) -> None:
        """It has ended. Effects: its row, if it has one, is free."""
        del self._sequences[sequence.key]
        row = sequence.release()
        if row is not None:
            self._cache.free(row)

    # ---------------------------------------------------------------- for a scheduler

    def snapshot(self, busy: Collection[TargetSequence], depth: int) -> ScheduleSnapshot:
        """What a scheduler chooses from.

        Args:
            busy: sequences that cannot be in this step's round.
            depth: rounds that should be in flight.
        """
        by_state: dict[SequenceState, list[TargetSequence]] = {state: [] for state in SequenceState}
        for sequence in self._sequences.values():
            by_state[sequence.state].append(sequence)
        prefilling_now = sorted(by_state[SequenceState.PREFILLING], key=lambda sequence: sequence.admitted_s)
        order = self._chunk_turns.order([each.sender for each in prefilling_now])
        by_state[SequenceState.PREFILLING] = [prefilling_now[place] for place in order]
        if waiting_now := by_state[SequenceState.WAITING]:
            turns = in_turns([each.sender for each in waiting_now], (each.sender for each in self.with_rows))
            by_state[SequenceState.WAITING] = [waiting_now[place] for place in turns]
        waiting, prefilling, running = (
            tuple(
                Candidate(each.key, len(each.token_ids), each.num_passed_over, each in busy) for each in by_state[state]
            )
            for state in (SequenceState.WAITING, SequenceState.PREFILLING, SequenceState.RUNNING)
        )
        return ScheduleSnapshot(waiting, prefilling, running, self.num_free_rows, depth)

    def note_plan(self, snapshot: ScheduleSnapshot, plan: StepPlan) -> list[TargetSequence]:
        """Count for each sequence the consecutive steps that chose others instead, for a row or for a round.

        Returns: the sequences that could be in this step's round and are not.
        """
        overtaken, left_out = passed_over(snapshot, plan)
        for key in (*plan.admit, *plan.decode):
            self._sequences[key].note_chosen()
        for key in (*overtaken, *left_out):
            self._sequences[key].note_passed_over()
        return [self._sequences[key] for key in left_out]

    def check_integrity(self) -> None:
        """Assert that the leased cache rows are exactly the rows of the sequences."""
        rows = [each.row for each in self.with_rows]
        assert len(rows) == len(set(rows)), "two sequences share a row"
        assert self._cache.rows.leased == set(rows), "leased rows are not the sequences' rows"
        for each in self._sequences.values():
            if each.state is SequenceState.RUNNING:
                assert each.row is not None
                assert self._cache.lengths[each.row] == each.prefix_len - 1
        self._cache.check_integrity()
