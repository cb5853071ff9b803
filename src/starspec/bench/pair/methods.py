"""Ways of decoding the same requests, ready to be timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from starspec.bench.baseline import Assistance, TransformersBaseline
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.harness.decode import Job, JobResult, decode, make_engine
from starspec.harness.workbench import Workbench
from starspec.stats import AcceptanceStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way of decoding."""

    name: str
    batch_size: int
    is_ours: bool  # its tokens must equal those of our plain decoding
    num_draft_tokens: int | None  # K; None = plain, or chosen by the method
    answer: Callable[[Sequence[Job]], list[JobResult]] = field(repr=False)


@dataclass(slots=True)
class Timed:
    """One method's runs."""

    seconds: list[float] = field(default_factory=list)  # [repeat] over all requests
    answers: dict[str, JobResult] = field(default_factory=dict)  # request name -> last answer

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers.values())

    @property
    def tokens_per_s(self) -> list[float]:
        """One value for each repeat."""
        return [self.num_tokens / seconds for seconds in self.seconds]

    @property
    def acceptance(self) -> AcceptanceStats:
        total = AcceptanceStats()
        for answer in self.answers.values():
            total.add(answer.stats.acceptance)
        return total

    def run(self, method: Method, jobs: Sequence[Job], repeat: int) -> None:
        """Time some requests and add them to a repeat."""
        started_s = time.perf_counter()
        answers = method.answer(jobs)
        elapsed_s = time.perf_counter() - started_s
        self.seconds.extend([0.0] * (repeat + 1 - len(self.seconds)))
        self.seconds[repeat] += elapsed_s
        self.answers.update(zip((job.name for job in jobs), answers, strict=True))


@dataclass(frozen=True, slots=True)
class Work:
    """The requests that the methods decode."""

    singles: Sequence[Job]  # one at a time
    batched: Sequence[Job]  # by methods of larger batches


def plain_method(bench: Workbench, batch_size: int = 1) -> Method:
    """Our own decoding without drafts."""
    return our_method(bench, "plain", NoDrafts(), None, batch_size)


def our_method(
    bench: Workbench, name: str, drafts: Drafts, num_draft_tokens: int | None, batch_size: int = 1
) -> Method:
    """Our own decoding with some drafts."""
    engine = make_engine(bench.runner, bench.tokenizer, drafts)

    def answer(jobs: Sequence[Job]) -> list[JobResult]:
        asked = [replace(job, num_draft_tokens=num_draft_tokens) for job in jobs]
        return decode(engine, asked, batch_size=batch_size, is_staggered=False)

    return Method(name=name, batch_size=batch_size, is_ours=True, num_draft_tokens=num_draft_tokens, answer=answer)


def transformers_method(baseline: TransformersBaseline, assistance: Assistance | None = None) -> Method:
    """transformers' `generate`, plain or assisted."""
    return Method(
        name="transformers generate" if assistance is None else f"transformers assisted, {assistance.name}",
        batch_size=1,
        is_ours=False,
        num_draft_tokens=assistance.num_tokens if assistance and assistance.schedule == "constant" else None,
        answer=lambda jobs: [baseline.answer(job, assistance) for job in jobs],
    )


def run_in_turns(
    methods: Sequence[Method], work: Work, num_repeats: int, advance: Callable[[str], None]
) -> dict[str, Timed]:
    """Time all methods on their requests. They take turns, so a slow moment of the machine slows all of them.

    Methods with batch size 1 take turns after each request, the others after each repeat.

    Args:
        advance: called with what is about to run, `num_turns` times.
    Returns: method name and batch size as `key` -> its runs.
    """
    timed = {key(method): Timed() for method in methods}
    singles = [method for method in methods if method.batch_size == 1]
    batched = [method for method in methods if method.batch_size > 1]
    for repeat in range(num_repeats):
        for job in work.singles:
            for method in singles:
                advance(method.name)
                timed[key(method)].run(method, [job], repeat)
        for method in batched:
            advance(key(method))
            timed[key(method)].run(method, work.batched, repeat)
    return timed


def num_turns(methods: Sequence[Method], num_jobs: int, num_repeats: int) -> int:
    """How often `run_in_turns` calls `advance`."""
    return num_repeats * sum(num_jobs if method.batch_size == 1 else 1 for method in methods)


def key(method: Method) -> str:
    """Names a method within one run."""
    return method.name if method.batch_size == 1 else f"{method.name}, batch {method.batch_size}"
