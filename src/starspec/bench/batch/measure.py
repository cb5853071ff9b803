"""`starspec bench batch`: every method at every batch size over the same requests, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from statistics import median_low
from typing import Any

from starspec.bench.batch.conversations import conversation_jobs
from starspec.bench.batch.methods import MethodRun, run_method
from starspec.bench.batch.plan import PLAIN, BatchMethod, BatchPlan
from starspec.bench.batch.report import BatchReport, ratios_of
from starspec.bench.batch.rows import batch_row, completion_of
from starspec.bench.batch.serving import poisson_arrivals
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.errors import ConfigError
from starspec.harness.compare import NEAR_TIE, divergences
from starspec.harness.datasets import Prompt, fitting_prompts, spread
from starspec.harness.decode import Advance, Job
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance, hash_token_ids
from starspec.harness.report import Spread
from starspec.harness.workbench import Sampling, Workbench
from starspec.local_star import LocalHub
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.policy.length.make import make_policy
from starspec.stats import TargetStats

WARM_UP_TOKENS = 4  # of an answer
SPREAD = 8  # contexts of n tokens are n - n / SPREAD .. n tokens long


Runs = dict[BatchMethod, list[MethodRun]]
"""Every method's repeats."""


class _Bench:
    """The loaded models, and how one run works.

    Rounds are compared, and prefills take longer than all rounds. So the target prefills the prompts in the first run
    of each cache layout only (with an EAGLE head as draft in every run, because the head needs hidden states). The
    draft prefills them before the first run of each batch size. Other runs copy, and add the time that the prefill
    took.
    """

    def __init__(self, models: ModelPair, plan: BatchPlan, methods: Sequence[BatchMethod]) -> None:
        num_rows = max(method.num_rows for method in methods)
        models = replace(models, max_model_len=plan.max_model_len)
        self.plan = plan
        self.speculative = models.speculative(
            num_speculative_tokens=plan.num_draft_tokens,
            draft_p_min=plan.draft_p_min,
            disable_by_batch_size=plan.disable_by_batch_size,
        )
        self.workbench = Workbench(models.target_config(num_rows), self.speculative)
        # a prefilled prompt keeps its row; a sequence that ends first must not free the row of the next one
        like_target = replace(self.workbench.config, num_rows=max(num_rows, 2 * plan.num_asked))
        self.hub = LocalHub(like_target, self.workbench.runner.info, self.speculative, self.workbench.tokenizer)
        self.known = KnownPrompts()
        self._draft_prefills: dict[int, tuple[Drafts, float]] = {}  # batch size -> drafts, and seconds of their prefill

    def run(self, method: BatchMethod, jobs: Sequence[Job]) -> MethodRun:
        """Run all requests at once. Every call must have the same jobs."""
        if method.is_plain:
            return self._run(method, NoDrafts(), jobs)
        size = method.batch_size
        if size not in self._draft_prefills:
            drafts = self._new_drafts(size)
            # not within a timed round, which would include part of it
            first_rounds = _shortened(jobs, self.plan.num_draft_tokens + 1)  # with proposals of full length
            self._draft_prefills[size] = drafts, self._run(method, drafts, first_rounds).draft_prefill_s
        drafts, prefill_s = self._draft_prefills[size]
        run = self._run(method, drafts, jobs)
        saved_s = prefill_s - run.draft_prefill_s
        return replace(run, draft_prefill_s=prefill_s, prefilled_before_s=run.prefilled_before_s + saved_s)

    def _run(self, method: BatchMethod, drafts: Drafts, jobs: Sequence[Job]) -> MethodRun:
        return run_method(self.workbench, method, drafts, jobs, self.plan.num_draft_tokens, known=self.known)

    def run_apart(
        self, method: BatchMethod, jobs: Sequence[Job], arrivals_s: Sequence[float] | None = None
    ) -> MethodRun:
        """A run that shares no prefill with other runs."""
        drafts = self._new_drafts(method.batch_size)
        try:
            return run_method(self.workbench, method, drafts, jobs, self.plan.num_draft_tokens, arrivals_s)
        finally:
            drafts.shutdown()

    def _new_drafts(self, batch_size: int) -> Drafts:
        """Drafts of a target that is new to the hub."""
        return self.hub.drafts(make_policy(self.speculative, batch_size), TargetStats())


def measure_batch(models: ModelPair, prompts: Sequence[Prompt], plan: BatchPlan, advance: Advance) -> BatchReport:
    """Load the pair, decode plainly at batch size 1 for reference, then run all methods in turns.

    Raises: ConfigError if no prompt is short enough (before weights are read), or if the model does not support a
        batching method; ModelError; VocabularyMismatch.
    """
    advance("loading", None)
    fitting = _fitting(load_tokenizer(models.target), prompts, plan)
    methods = plan.of_all_sizes()
    bench = _Bench(models, plan, methods)
    jobs = _jobs(bench.workbench, fitting, plan)
    advance("decoding", 2 + len(methods) * plan.num_repeats * (2 if plan.load else 1))
    _warm_up(bench, methods, jobs)
    advance("plain, alone", None)
    reference = bench.run(BatchMethod.named(PLAIN, 1), jobs).served.answers
    runs, arrived, is_whole = _measured(bench, methods, jobs, advance)
    methods, rates = list(runs), _arrival_rates(runs, plan.load, len(jobs))
    answered = {method: [run.served.answers for run in (*runs[method], *arrived.get(method, ()))] for method in methods}
    advance("why answers differ", None)
    runner = bench.known.prefilling_once(bench.workbench.runner)  # runs diverge at the same few places of these prompts
    rows = [
        batch_row(
            method,
            runs[method],
            next((each for other, each in runs.items() if (other.name, other.batch_size) == (method.name, 1)), []),
            reference,
            answered[method],
            [each for found in answered[method] for each in divergences(runner, jobs, reference, found)],
            completion_of(arrived[method], rates[method]) if method in arrived else None,
        )
        for method in methods
    ]
    return BatchReport(
        provenance=collect_provenance(models.names),
        is_whole=is_whole,
        rows=rows,
        ratios=ratios_of(rows),
        num_draft_tokens=plan.num_draft_tokens,
        draft_p_min=plan.draft_p_min,
        disable_by_batch_size=plan.disable_by_batch_size,
        draft_quantization=models.quantization,
        dtype=models.dtype,
        numerics=bench.workbench.numerics_report,
        is_promised=bench.workbench.promises_equality,
        max_passed_over=plan.exspec.max_passed_over,
        min_group=plan.exspec.min_group,
        is_multi_turn=plan.is_multi_turn,
        admission=plan.admission,
        load=plan.load,
        context=plan.context,
        max_prompt_tokens=plan.max_prompt_tokens if plan.context is None else None,
        num_left_out=len(prompts) - len(fitting),
        prompt_tokens=Spread.of([len(job.prompt_token_ids) for job in jobs]),
        temperature=plan.temperature,
        max_tokens=plan.max_tokens,
        prompts_sha256=hash_token_ids(list(job.prompt_token_ids) for job in jobs),
        gap_bound=NEAR_TIE,
    )


def _fitting(tokenizer: Any, prompts: Sequence[Prompt], plan: BatchPlan) -> Sequence[Prompt]:
    """The prompts that requests are chosen from. Raises: ConfigError if there are none."""
    if plan.context is not None:
        return prompts
    fitting = fitting_prompts(tokenizer, prompts, plan.max_prompt_tokens)
    if not fitting:
        raise ConfigError(
            f"no prompt has at most {plan.max_prompt_tokens} tokens (--max-prompt-tokens), and longer ones are left "
            "out; a context (--context) takes any"
        )
    return fitting


def _jobs(bench: Workbench, fitting: Sequence[Prompt], plan: BatchPlan) -> list[Job]:
    sampling = Sampling(temperature=plan.temperature)
    chosen = spread(fitting, plan.num_asked)
    if plan.is_multi_turn:
        longest = plan.max_prompt_tokens
        return conversation_jobs(bench, chosen, sampling, plan.max_tokens, longest)[: plan.num_asked]
    jobs = bench.jobs(chosen, sampling, plan.max_tokens)
    if plan.context is not None:
        jobs = of_context(jobs, bench.jobs(fitting, sampling, plan.max_tokens), plan.context)
    return of_one_length(jobs) if plan.is_one_length else jobs


def of_context(jobs: Sequence[Job], others: Sequence[Job], num_tokens: int) -> list[Job]:
    """The jobs with other prompts before their own, so that each prompt has about `num_tokens` tokens.

    Lengths differ by up to an eighth, as in a real batch. The last tokens are those of the job's own prompt. If the
    other prompts have too few tokens, they repeat.

    Args:
        others: the source of other prompts. Each job starts at a different one and leaves out its own prompt.
    """
    grown = []
    for index, job in enumerate(jobs):
        length = num_tokens - index * 7919 % max(1, num_tokens // SPREAD)
        first = index * len(others) // len(jobs)
        turns = [*others[first:], *others[:first]]
        strangers = [each.prompt_token_ids for each in turns if each.prompt_token_ids != job.prompt_token_ids]
        before = islice(cycle(chain.from_iterable(strangers)), length)  # nothing if there are none
        grown.append(replace(job, prompt_token_ids=(*before, *job.prompt_token_ids)[-length:]))
    return grown


def of_one_length(jobs: Sequence[Job]) -> list[Job]:
    """The jobs whose prompts have at least the median length, cut to it: the paper's All-Mean study.

    The paper takes prompts of the mean length. In mixed tasks too few prompts have one length, so this keeps the last
    tokens of longer ones, which include the end of the chat template.
    """
    length = median_low(len(job.prompt_token_ids) for job in jobs)
    return [
        replace(job, prompt_token_ids=job.prompt_token_ids[-length:])
        for job in jobs
        if len(job.prompt_token_ids) >= length
    ]


def _warm_up(bench: _Bench, methods: Sequence[BatchMethod], jobs: Sequence[Job]) -> None:
    """Decode one short answer with each method."""
    for name in dict.fromkeys(method.name for method in methods):
        bench.run_apart(bench.plan.named(name, 1), _shortened(jobs[:1], WARM_UP_TOKENS))


def _shortened(jobs: Sequence[Job], max_tokens: int) -> list[Job]:
    return [replace(job, max_tokens=min(job.max_tokens, max_tokens)) for job in jobs]


def _measured(
    bench: _Bench, methods: Sequence[BatchMethod], jobs: Sequence[Job], advance: Advance
) -> tuple[Runs, Runs, bool]:
    """The repeats of every method, without and with arrivals, and whether the plan was completed.

    An interrupt (Ctrl-C) ends measuring and keeps the results so far, which may be hours of work.

    Raises: KeyboardInterrupt if nothing was measured yet.
    """
    runs: Runs = {}
    arrived: Runs = {}
    try:
        _run_in_turns(bench, methods, jobs, advance, runs)
        if bench.plan.load:
            rates = _arrival_rates(runs, bench.plan.load, len(jobs))
            _arrive_in_turns(bench, rates, jobs, advance, arrived)
    except KeyboardInterrupt:
        if not runs:
            raise
        return runs, arrived, False
    return runs, arrived, True


def _run_in_turns(
    bench: _Bench, methods: Sequence[BatchMethod], jobs: Sequence[Job], advance: Advance, runs: Runs
) -> None:
    """Effects: adds each repeat of every method to `runs` as soon as it ends."""
    for _, method in _turns(methods, bench.plan.num_repeats):
        advance(f"{method.name}, batch {method.batch_size}", None)
        run = bench.run(method, jobs)
        runs.setdefault(method, []).append(run)


def _turns(methods: Sequence[BatchMethod], num_repeats: int) -> Iterator[tuple[int, BatchMethod]]:
    """Yields (repeat, method). Methods take turns, so a slow moment of the machine slows all of them.

    Each repeat begins with another method, so that the order does not favour one.
    """
    for repeat in range(num_repeats):
        first = repeat % len(methods)
        yield from ((repeat, method) for method in (*methods[first:], *methods[:first]))


def _arrival_rates(
    runs: Mapping[BatchMethod, Sequence[MethodRun]], load: float, num_jobs: int
) -> dict[BatchMethod, float]:
    """Requests a second: the same for all methods of a batch size."""
    rates = {}
    for method in runs:
        rivals = [other for other in runs if other.batch_size == method.batch_size and not other.is_plain]
        slowest = max(run.seconds for other in rivals or [method] for run in runs[other])
        rates[method] = load * num_jobs / slowest
    return rates


def _arrive_in_turns(
    bench: _Bench, rates: Mapping[BatchMethod, float], jobs: Sequence[Job], advance: Advance, arrived: Runs
) -> None:
    """Effects: adds the repeats of every method to `arrived`. Each repeat has its own arrival times for all methods."""
    for repeat, method in _turns(list(rates), bench.plan.num_repeats):
        advance(f"{method.name}, batch {method.batch_size}, Poisson arrivals", None)
        run = bench.run_apart(method, jobs, poisson_arrivals(len(jobs), rates[method], seed=repeat))
        arrived.setdefault(method, []).append(run)
