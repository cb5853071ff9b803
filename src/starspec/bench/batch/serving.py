"""Serve requests as they arrive, and measure the time of prefills apart from the time of rounds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from starspec.engine.drafts import Drafts
from starspec.engine.engine import TargetEngine
from starspec.engine.sequence import RoundOutput, SequenceState, TargetSequence
from starspec.errors import OurBug
from starspec.harness.decode import Job, JobResult
from starspec.harness.recorder import DraftsAround
from starspec.ids import RequestId
from starspec.speculation.tree import DraftTree
from starspec.stats import BatchStats, TargetStats


@dataclass(frozen=True, slots=True)
class Served:
    """The results of some requests, in their order."""

    answers: list[JobResult]
    completion_s: list[float]  # of each request, from arrival to last token
    seconds: float  # first arrival to last token of all

    @property
    def num_tokens(self) -> int:
        return sum(len(each.token_ids) for each in self.answers)


def poisson_arrivals(num: int, rate_per_s: float, seed: int) -> list[float]:
    """Seconds at which requests arrive: a Poisson process, the first at 0."""
    draw = random.Random(seed)  # noqa: S311 (not for secrets)
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
    answers, ended_s = [JobResult() for _ in jobs], [0.0] * len(jobs)
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
    except BaseException:  # an interrupt too: the report of earlier runs needs the same cache
        for index in range(num_submitted):
            engine.abort(RequestId(str(index)))
        raise
    waits = [end - arrival for end, arrival in zip(ended_s, arrivals, strict=True)]
    return Served(answers, waits, max(ended_s, default=0.0))


class TargetPrefill:
    """Adds up the prefill time in an engine's trace. Implements Tracer."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def slice(self, track: str, name: str, start_s: float, end_s: float, **args: str | float) -> None:  # noqa: ARG002
        if name == "prefill":
            self.seconds += end_s - start_s


class DraftPrefill(DraftsAround):
    """Waits between rounds for the draft's prefills, so that no round waits for them.

    A new sequence's first proposal comes with its prefill and counts with it. Before the hub gets a new prompt, this
    waits for the proposals of all other sequences, because they would share draft steps with it. That time counts for
    the rounds.

    Args:
        drafts: the originals.
        stats: of the engine's rounds; gets their time.
    """

    def __init__(self, drafts: Drafts, stats: BatchStats, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(drafts)
        self.seconds = 0.0  # of prefills and first proposals
        self._stats = stats
        self._clock = clock
        self._newcomers: dict[RequestId, TargetSequence] = {}
        self._beginners: set[RequestId] = set()  # their first proposals have arrived and are not collected yet
        self.num_first_rounds = 0  # rounds with beginners only
        self._reported: dict[RequestId, TargetSequence] = {}  # not collected since the report

    def open(self, sequences: Sequence[TargetSequence]) -> None:
        if self._reported:
            self._stats.draft_s += self._seconds_of(list(self._reported.values()))
            self._reported.clear()
        super().open(sequences)
        self._newcomers |= {each.request_id: each for each in sequences}

    def poll(self) -> None:
        """Called after each prefill chunk: wait for the first proposals of sequences that the target has prefilled."""
        prefilled = [each for each in self._newcomers.values() if each.state is SequenceState.RUNNING]
        self.seconds += self._seconds_of(prefilled)
        for sequence in prefilled:
            del self._newcomers[sequence.request_id]
            self._beginners.add(sequence.request_id)

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        request_ids = {each.request_id for each in batch}
        self.num_first_rounds += request_ids <= self._beginners
        self._beginners -= request_ids
        for request_id in request_ids:
            self._reported.pop(request_id, None)
        return super().collect(batch)

    def charge_first_rounds(self) -> None:
        """Add the mean drafting time to rounds that did not wait because they had first proposals only.

        Otherwise much of the drafting of short answers would be free. Call it once, at the end.
        Effects: `draft_s` of the rounds.
        """
        self._stats.draft_s = with_first_rounds(self._stats.draft_s, self._stats.num_rounds, self.num_first_rounds)

    def report(self, batch: Sequence[TargetSequence], emitted: Sequence[RoundOutput]) -> None:
        super().report(batch, emitted)
        self._reported |= {each.request_id: each for each in batch if each.state is SequenceState.RUNNING}

    def close(self, sequence: TargetSequence) -> None:
        self._newcomers.pop(sequence.request_id, None)
        self._reported.pop(sequence.request_id, None)
        super().close(sequence)

    def _seconds_of(self, sequences: Sequence[TargetSequence]) -> float:
        """Wait for their proposals; a later round collects the same ones. Returns: the seconds of waiting."""
        started_s = self._clock()
        self._drafts.collect(sequences)
        return self._clock() - started_s


def with_first_rounds(draft_s: float, num_rounds: float, num_first_rounds: float) -> float:
    """The drafting time of all rounds, of which the first ones waited for nothing, if they took as long as others."""
    num_timed = num_rounds - num_first_rounds
    return draft_s * num_rounds / num_timed if num_timed else draft_s


class _Sums(NamedTuple):
    """Of some rounds. Counts are floats too, so that all fields are added in one way."""

    num_rounds: float
    num_sequence_rounds: float
    num_first_rounds: float  # as DraftPrefill counts them
    num_tokens: float
    draft_s: float
    other_s: float  # without drafting and prefill


class FullRounds:
    """Adds up the rounds in which as many sequences run as a batch holds.

    No request follows the last ones of a run, so its last rounds hold fewer and fewer sequences, and take nearly as
    long as full ones. In a server other requests take their places.

    Args:
        stats: of the engine.
        drafts: of the engine.
    """

    def __init__(self, stats: TargetStats, drafts: DraftPrefill, batch_size: int) -> None:
        self._stats, self._drafts, self._batch_size = stats, drafts, batch_size
        self._before = self._sums()
        self._full = _Sums(*[0.0] * 6)

    @property
    def num_tokens(self) -> float:
        return self._full.num_tokens

    @property
    def seconds(self) -> float:
        """Without prefill; first rounds are charged as in DraftPrefill."""
        full = self._full
        return with_first_rounds(full.draft_s, full.num_rounds, full.num_first_rounds) + full.other_s

    def note_step(self) -> None:
        """Called after each step of the engine, which has at most one round."""
        before, self._before = self._before, self._sums()
        step = _Sums(*(now - then for now, then in zip(self._before, before, strict=True)))
        if step.num_sequence_rounds == self._batch_size:
            self._full = _Sums(*(sum(pair) for pair in zip(self._full, step, strict=True)))

    def _sums(self) -> _Sums:
        batch, num_tokens = self._stats.batch, self._stats.acceptance.num_emitted_tokens
        return _Sums(
            batch.num_rounds,
            batch.num_sequence_rounds,
            self._drafts.num_first_rounds,
            num_tokens,
            batch.draft_s,
            batch.total_s - batch.draft_s,
        )
