"""What the reading of prompts takes, of the target and of the draft, kept apart from what rounds take.

For engines whose rounds wait for prompts (`prompts="first"`), with a hub on their own thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from starspec.engine.drafts import Drafts
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.harness.around import DraftsAround
from starspec.ids import RequestId
from starspec.speculation.tree import DraftTree
from starspec.stats import BatchStats


class TargetReading:
    """The seconds of an engine's trace that are prompts. Implements Tracer."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:  # noqa: ARG002
        if name == "prefill":
            self.seconds += end_s - start_s


class DraftReading(DraftsAround):
    """Drafts that are awaited between rounds while their prompts are read, so that no round waits for that.

    A newcomer's first proposal comes with the reading of its prompt and is counted with it. Before the hub is told of
    the prompt, the proposals of all others are awaited, which would share layers with it: that time is the rounds'.

    Args:
        drafts: the originals.
        stats: of the engine's rounds; gets that time.
    """

    def __init__(self, drafts: Drafts, stats: BatchStats, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(drafts)
        self.seconds = 0.0  # of prompts and first proposals
        self._stats = stats
        self._clock = clock
        self._newcomers: dict[RequestId, TargetSequence] = {}
        self._beginners: set[RequestId] = set()  # whose first proposals are there, and not collected
        self._num_first_rounds = 0  # of beginners alone
        self._reported: dict[RequestId, TargetSequence] = {}  # and not collected since

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        if self._reported:
            self._stats.draft_s += self._seconds_of(list(self._reported.values()))
            self._reported.clear()
        super().open(sequences)
        self._newcomers |= {each.request_id: each for each in sequences}

    def poll(self) -> None:
        """Called after each chunk of a prompt: await the first proposals of those whom the target has read."""
        read = [each for each in self._newcomers.values() if each.state is SequenceState.RUNNING]
        self.seconds += self._seconds_of(read)
        for sequence in read:
            del self._newcomers[sequence.request_id]
            self._beginners.add(sequence.request_id)

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        request_ids = {each.request_id for each in batch}
        self._num_first_rounds += request_ids <= self._beginners
        self._beginners -= request_ids
        for request_id in request_ids:
            self._reported.pop(request_id, None)
        return super().collect(batch)

    def charge_first_rounds(self) -> None:
        """Charge rounds that had nothing to wait for, of first proposals alone, what others took on average.

        Else short answers would have much of their drafting for nothing. Call once, when all is answered.
        Effects: `draft_s` of the rounds.
        """
        num_timed = self._stats.num_rounds - self._num_first_rounds
        if num_timed:
            self._stats.draft_s *= self._stats.num_rounds / num_timed

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        super().report(batch, emitted)
        self._reported |= {each.request_id: each for each in batch if each.state is SequenceState.RUNNING}

    def close(self, sequence: TargetSequence) -> None:
        self._newcomers.pop(sequence.request_id, None)
        self._reported.pop(sequence.request_id, None)
        super().close(sequence)

    def _seconds_of(self, sequences: Sequence[TargetSequence]) -> float:
        """Await their proposals; a round that collects them again gets the same. Returns: how long that took."""
        started_s = self._clock()
        self._drafts.collect(sequences)
        return self._clock() - started_s
