"""Run requests through an engine, a few at a time. When one ends, the next one joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starspec.config import BatchingConfig, Policy, TargetConfig
from starspec.engine.drafts import Drafts
from starspec.engine.endings import INTERNAL_ERROR
from starspec.engine.engine import TargetEngine
from starspec.errors import OurBug
from starspec.grammars.compile import Grammars
from starspec.ids import RequestId
from starspec.models.runner import BatchRunner
from starspec.sampling.grammar import GrammarSpec
from starspec.sampling.spec import SamplingSpec
from starspec.speculation.acceptance import DEFAULT_THRESHOLDS, KeyThresholds
from starspec.stats import RequestStats, TargetStats
from starspec.tracing import Tracer
from starspec.windows.judging import Judging, judge
from starspec.windows.local import LocalVerifier
from starspec.windows.verifier import Verifier
from starspec.wire.messages import RequestSpec

Advance = Callable[[str, int | None], None]
"""(what is about to run, number of turns of the stage that begins; None = a turn of the current stage)"""

MAX_QUEUED = 1 << 20  # requests; an offline run submits all requests at once
PREFILL_CHUNK = TargetConfig().prefill_chunk  # prompt tokens of one forward, as in a server


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    name: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingSpec
    max_tokens: int
    num_draft_tokens: int | None = None  # None: as the drafts are configured
    length_policy: Policy | None = None  # None: that of the drafts
    relaxed_tau: float = 0.0  # of relaxed verification; 0 = strict
    grammar: GrammarSpec | None = None  # of the answer; None = any text
    stop: tuple[str, ...] = ()  # strings that end the answer

    @property
    def spec(self) -> RequestSpec:
        return RequestSpec(
            prompt_token_ids=list(self.prompt_token_ids),
            sampling=self.sampling,
            max_tokens=self.max_tokens,
            num_draft_tokens=self.num_draft_tokens,
            length_policy=self.length_policy,
            relaxed_tau=self.relaxed_tau,
            grammar=self.grammar,
            stop=self.stop,
        )


@dataclass(slots=True)
class JobResult:
    """The result of one request."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)


def make_engine(
    runner: BatchRunner,
    tokenizer: Any,
    drafts: Drafts,
    stats: TargetStats | None = None,
    prefill_chunk: int = PREFILL_CHUNK,
    *,
    batching: BatchingConfig | None = None,
    max_num_seqs: int | None = None,
    trace: Tracer | None = None,
    thresholds: KeyThresholds = DEFAULT_THRESHOLDS,
    judge: Judging = judge,
) -> TargetEngine:
    """An engine for measuring. Only the runner's rows limit it, and jobs may be relaxed.

    Args:
        runner: with the cache layout of the batching method.
        max_num_seqs: sequences of a round; None = as many as the runner has rows.
        trace: records rounds, if given.
        thresholds: which tokens relaxed jobs verify strictly.
        judge: as for LocalVerifier.
    """
    batching = batching or BatchingConfig()
    verifier, info = LocalVerifier(runner, batching.method, judge), runner.info
    return TargetEngine(
        verifier,
        tokenizer,
        drafts,
        _bench_config(batching, max_num_seqs or runner.cache.num_rows, prefill_chunk),
        stats or TargetStats(),
        trace=trace,
        thresholds=thresholds,
        grammars=Grammars(tokenizer, info.vocab_size, info.eos_token_ids),
    )


def make_engine_over(
    verifier: Verifier, tokenizer: Any, drafts: Drafts, stats: TargetStats, *, max_num_seqs: int
) -> TargetEngine:
    """As make_engine, for a model that is elsewhere. It holds no answers to grammars."""
    config = _bench_config(BatchingConfig(), max_num_seqs, PREFILL_CHUNK)
    return TargetEngine(verifier, tokenizer, drafts, config, stats)


def _bench_config(batching: BatchingConfig, max_num_seqs: int, prefill_chunk: int) -> TargetConfig:
    return TargetConfig(
        name="bench",
        max_num_seqs=max_num_seqs,
        max_num_queued_reqs=MAX_QUEUED,
        prefill_chunk=prefill_chunk,
        batching=batching,
        allow_relaxed=True,
    )


def decode(
    engine: TargetEngine,
    jobs: Sequence[Job],
    *,
    batch_size: int,
    is_staggered: bool = True,
    on_end: Callable[[], None] = lambda: None,
) -> list[JobResult]:
    """Answer all jobs, at most `batch_size` at once.

    Args:
        is_staggered: at most one request joins in a step, so batches are ragged from the first round on (unless prompts
            come first). False: as many join at once as fit.
        on_end: called when a request ends.
    Returns: the answers, in the order of the jobs.
    Raises: RequestError if a job can never run; OurBug if the engine was not idle, or failed on a job.
    """
    if engine.has_work:
        raise OurBug("an engine that measures must be idle at the start")
    names = {RequestId(f"job-{index}"): index for index in range(len(jobs))}
    answers = [JobResult() for _ in jobs]
    waiting, num_active = list(names), 0
    while waiting or num_active:
        num_joining = min(len(waiting), batch_size - num_active, 1 if is_staggered else batch_size)
        for request_id in waiting[:num_joining]:
            engine.submit(request_id, jobs[names[request_id]].spec)
        del waiting[:num_joining]
        num_active += num_joining
        for output in engine.step().values():
            answer = answers[names[output.request_id]]
            answer.token_ids += output.token_ids
            if (output.finish_reason, output.stop_reason) == ("error", INTERNAL_ERROR):
                raise OurBug(f"the target failed on {output.request_id}; the log says why")
            if output.finish_reason is not None:
                answer.finish_reason, answer.stats = output.finish_reason, output.stats or answer.stats
                num_active -= 1
                on_end()
    return answers
