"""Requests through an engine as they arrive, with the time that prompts take kept apart from the time of rounds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starspec.engine.drafts import Drafts
from starspec.engine.engine import TargetEngine
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.errors import OurBug
from starspec.harness.decode import Answer, Job
from starspec.harness.recorder import DraftsAround
from starspec.ids import RequestId
from starspec.speculation.tree import DraftTree
from starspec.stats import BatchStats


@dataclass(frozen=True, slots=True)
class Served:
    """What came of some requests, in their order."""

    answers: list[Answer]
    completion_s: list[float]  # arrival to last token, of each
    seconds: float  # first arrival to last token of all

    @property
    def num_tokens(self) -> int:
        return sum(len(each.token_ids) for each in self.answers)


def poisson_arrivals(num: int, rate_per_s: float, seed: int) -> list[float]:
    """Seconds at which requests arrive: a Poisson process, the first at 0."""
    draw = random.Random(seed)  # noqa: S311 (arrivals need no secrecy)
    arrivals = [0.0]
    while len(arrivals) < num:
        arrivals.append(arrivals[-1] + draw.expovariate(rate_per_s))
    return arrivals[:num]


def serve(
    engine: TargetEngine,
    jobs: Sequence[Job],
    arrivals_s: Sequence[float] | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    after_step: Callable[[], None] = lambda: None,
) -> Served:
    """Answer all jobs; the engine decides who runs when.

    Args:
        arrivals_s: when each job comes, in seconds from the beginning, not decreasing; None = all at once.
        after_step: called after each step of the engine.
    Raises: RequestError if a job can never run; OurBug if the engine was not idle.
    Effects: whatever is raised, no row of the engine's cache is held afterwards.
    """
    if engine.has_work:
        raise OurBug("an engine that measures must begin idle")
    arrivals = [0.0] * len(jobs) if arrivals_s is None else arrivals_s
    answers, ended_s = [Answer() for _ in jobs], [0.0] * len(jobs)
    num_submitted, started_s = 0, clock()
    try:
        while num_submitted < len(jobs) or engine.has_work:
            while num_submitted < len(jobs) and arrivals[num_submitted] <= clock() - started_s:
                engine.submit(RequestId(str(num_submitted)), jobs[num_submitted].spec)
                num_submitted += 1
            if not engine.has_work:
                sleep(max(0.0, arrivals[num_submitted] - (clock() - started_s)))
                continue
            for output in engine.step().values():
                index = int(output.request_id)
                answers[index].token_ids += output.token_ids
                if output.finish_reason is not None:
                    answers[index].finish_reason = output.finish_reason
                    answers[index].stats = output.stats or answers[index].stats
                    ended_s[index] = clock() - started_s
            after_step()
    except BaseException:  # an interrupt too: what was measured before is told with the help of the same cache
        for index in range(num_submitted):
            engine.abort(RequestId(str(index)))
        raise
    waits = [end - arrival for end, arrival in zip(ended_s, arrivals, strict=True)]
    return Served(answers, waits, max(ended_s, default=0.0))


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
