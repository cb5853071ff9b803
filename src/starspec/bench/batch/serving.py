"""Requests through an engine as they arrive: all at once, or one after the other at random times."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starspec.engine.engine import TargetEngine
from starspec.errors import OurBug
from starspec.harness.decode import Answer, Job
from starspec.ids import RequestId


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
