"""What a target's engine has in flight, and what it may launch beside that."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from starspec.engine.drafts import Drafts
from starspec.engine.prefill import LaunchedChunk
from starspec.engine.request_table import RequestTable
from starspec.engine.round import LaunchedRound
from starspec.engine.sequence import SequenceState, TargetSequence
from starspec.policy.target_batch import ScheduleSnapshot
from starspec.windows.verifier import Ticket, Verifier

MAX_CHUNKS: Final = 4  # of prompts in flight, beside rounds
MAX_IN_FLIGHT: Final = 48  # launches, stale ones too: they all wait at a stage that pauses, and it keeps at most 64
Launched = LaunchedRound | LaunchedChunk


class InFlight:
    """The launches that have not landed.

    Args:
        requests: whose sequences they are.
    """

    def __init__(self, verifier: Verifier, drafts: Drafts, requests: RequestTable) -> None:
        self._verifier = verifier
        self._drafts = drafts
        self._requests = requests
        self._launches: dict[Ticket, Launched] = {}

    def __len__(self) -> int:
        return len(self._launches)

    def add(self, launched: Launched) -> None:
        """It was launched."""
        self._launches[launched.ticket] = launched

    def take(self, ticket: Ticket) -> Launched:
        """It has landed."""
        return self._launches.pop(ticket)

    def clear(self) -> None:
        """They are lost, and never land."""
        self._launches.clear()

    @property
    def num_live(self) -> int:
        """Without rounds that all stand on refused tokens."""
        return sum(each.is_live for each in self._launches.values())

    @property
    def num_windows(self) -> int:
        """Windows of one sequence that may be in flight."""
        return self._verifier.num_windows(self._requests.num_running, self._drafts.num_windows)

    @property
    def can_take_chunk(self) -> bool:
        return self._verifier.depth > 0 and len(self._chunks) < MAX_CHUNKS

    @property
    def can_take_round(self) -> bool:
        """Whether one more round may be in flight. Chunks are beside rounds."""
        depth, num_windows = self._verifier.depth, self.num_windows
        if depth and num_windows > 1:
            depth = max(depth, num_windows * self._requests.num_running)
        return self.num_live - len(self._chunks) < depth and len(self) < MAX_IN_FLIGHT

    def snapshot(self, waiting: Set[TargetSequence], *, can_round: bool) -> ScheduleSnapshot:
        """What a scheduler chooses from.

        Args:
            waiting: sequences that are in no round now.
            can_round: whether a round may be launched.
        """
        num_windows = self.num_windows
        chunks = {each.sequence for each in self._chunks if each.is_last}  # wait for features, or are RUNNING
        busy = {each for each in chunks if each.state is SequenceState.PREFILLING}
        running = [each for each in self._requests.with_rows if each.state is SequenceState.RUNNING]
        for each in running:
            if not can_round or (self._launches and not self._may_launch(each, num_windows)):
                busy.add(each)
        busy |= waiting
        return self._requests.snapshot(busy, self._verifier.depth if num_windows == 1 else 1)

    def _may_launch(self, sequence: TargetSequence, num_windows: int) -> bool:
        """Whether a running sequence may be in the next round, beside what is in flight."""
        flights = sequence.flights
        if not flights:
            return not self._drafts.holds_back(sequence)
        return len(flights) < num_windows and flights.may_go_on and self._drafts.can_go_on(sequence)

    @property
    def _chunks(self) -> list[LaunchedChunk]:
        return [each for each in self._launches.values() if isinstance(each, LaunchedChunk)]
