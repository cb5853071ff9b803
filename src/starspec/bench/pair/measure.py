"""`starspec bench pair`: plain, speculative and transformers, taking turns over the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starspec.bench.baseline import Assistance, TransformersBaseline
from starspec.bench.datasets import Prompt, spread
from starspec.bench.decode import Job
from starspec.bench.pair.methods import (
    Method,
    Work,
    key,
    num_turns,
    our_method,
    plain_method,
    run_in_turns,
    transformers_method,
)
from starspec.bench.pair.rows import PairRow, pair_row, plain_answers, ratios_of
from starspec.bench.pair.steps import StepRow, measure_steps
from starspec.bench.provenance import Provenance, collect_provenance
from starspec.bench.workbench import GREEDY, Workbench
from starspec.config import ModelConfig, SpeculativeConfig
from starspec.models.packed import PackedRunner
from starspec.target.drafts import Drafts

ASSISTANCES = (Assistance("heuristic"), Assistance("constant", 3), Assistance("constant", 5))
MAX_BATCH_SIZE = 8
MAX_DRAFT_TOKENS = 8
WARM_UP_TOKENS = 6  # of prompt and answer


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """How much to measure."""

    num_prompts: int = 8  # of each file, one at a time
    num_batch_prompts: int = 8  # of each file, in batches
    batch_sizes: tuple[int, ...] = (4, MAX_BATCH_SIZE)
    max_tokens: int = 96
    num_repeats: int = 3
    lengths: tuple[int, ...] = (2, 3, 4, 5, 6)  # K tried in the run before
    num_length_prompts: int = 2  # of each file, in the run before


QUICK = PairPlan(
    num_prompts=1,
    num_batch_prompts=4,
    batch_sizes=(MAX_BATCH_SIZE,),
    max_tokens=32,
    num_repeats=1,
    lengths=(3, 5),
    num_length_prompts=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """What `starspec bench pair` saves."""

    provenance: Provenance
    rows: list[PairRow]
    ratios: dict[str, float]
    outputs_identical: bool  # ours, whatever the drafts and the batch
    best_num_draft_tokens: int
    tokens_per_s_by_length: dict[int, float]  # of the run before
    steps: list[StepRow]  # of the target; empty for a synthetic one
    numerics: str
    prompts: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairModels:
    """What is measured."""

    target: str
    draft: str
    quantization: str  # of the draft that the headline is about
    dtype: str
    num_threads: int
    max_model_len: int = 1024

    def target_config(self) -> ModelConfig:
        return ModelConfig(
            model=self.target,
            dtype=self.dtype,  # type: ignore[arg-type]
            num_rows=MAX_BATCH_SIZE,
            max_model_len=self.max_model_len,
            num_threads=self.num_threads,
        )

    def speculative(self, quantization: str) -> SpeculativeConfig:
        return SpeculativeConfig(
            model=self.draft,
            quantization=quantization,  # type: ignore[arg-type]
            num_speculative_tokens=MAX_DRAFT_TOKENS,
            max_model_len=self.max_model_len,
        )


@dataclass(slots=True)
class _Bench:
    """Everything loaded."""

    models: PairModels
    workbench: Workbench
    jobs: list[Job]  # one at a time
    batch_jobs: list[Job]
    baseline: TransformersBaseline
    drafts: dict[str, Drafts] = field(default_factory=dict)  # by the draft's quantization


Advance = Callable[[str, int | None], None]
"""(what is about to run, turns of this stage if it begins)"""


def measure_pair(
    models: PairModels, prompt_files: Sequence[Sequence[Prompt]], plan: PairPlan, advance: Advance
) -> PairReport:
    """Load everything, find the best speculation length, then time all methods in turns.

    Args:
        prompt_files: `plan.num_prompts` of each are used, evenly spread.
    Raises: ModelError, VocabularyMismatch.
    """
    advance("loading the target", 2 + 3)
    bench = _load(models, prompt_files, plan, lambda what: advance(what, None))
    by_length = _try_lengths(bench, plan, advance)
    best = max(by_length, key=lambda length: by_length[length])
    advance("profiling steps", None)
    runner = bench.workbench.runner
    steps = measure_steps(runner, (1, best + 1)) if isinstance(runner, PackedRunner) else []
    methods = _methods(bench, plan, best)
    advance("warming up", 1 + num_turns(methods, len(bench.jobs), plan.num_repeats))
    _warm_up(methods, bench.jobs)
    work = Work(bench.jobs, bench.batch_jobs)
    timed = run_in_turns(methods, work, plan.num_repeats, lambda what: advance(what, None))
    plain = plain_answers(methods, timed)
    rows = [pair_row(method, timed[key(method)], plain) for method in methods]
    return PairReport(
        provenance=collect_provenance({"target": models.target, "draft": models.draft}),
        rows=rows,
        ratios=ratios_of(rows),
        outputs_identical=all(
            row.num_same_as_plain == row.num_answers
            for row, method in zip(rows, methods, strict=True)
            if method.is_ours
        ),
        best_num_draft_tokens=best,
        tokens_per_s_by_length=by_length,
        steps=steps,
        numerics=bench.workbench.numerics_report,
        prompts=[job.name for job in bench.jobs],
    )


def _load(
    models: PairModels, prompt_files: Sequence[Sequence[Prompt]], plan: PairPlan, advance: Callable[[str], None]
) -> _Bench:
    workbench = Workbench(models.target_config())
    jobs, batch_jobs = (
        workbench.jobs(_share(prompt_files, num), GREEDY, plan.max_tokens)
        for num in (plan.num_prompts, plan.num_batch_prompts)
    )
    advance("loading both models into transformers")
    baseline = TransformersBaseline(
        models.target, models.dtype, workbench.runner.info.eos_token_ids, draft=models.draft
    )
    bench = _Bench(models, workbench, jobs, batch_jobs, baseline)
    for quantization in ("int4", "int8", "none"):
        advance(f"loading the draft, {quantization}")
        bench.drafts[quantization] = workbench.drafts(models.speculative(quantization))
    return bench


def _share(prompt_files: Sequence[Sequence[Prompt]], num: int) -> list[Prompt]:
    """`num` prompts of each file."""
    return [prompt for prompts in prompt_files for prompt in spread(prompts, num)]


def _try_lengths(bench: _Bench, plan: PairPlan, advance: Advance) -> dict[int, float]:
    """Tokens a second for each speculation length, on a few prompts."""
    jobs = spread(bench.jobs, len(bench.jobs) * plan.num_length_prompts // plan.num_prompts)
    drafts = bench.drafts[bench.models.quantization]
    methods = [our_method(bench.workbench, f"K = {length}", drafts, length) for length in plan.lengths]
    advance("trying speculation lengths", 1 + num_turns(methods, len(jobs), 1))
    _warm_up(methods[:1], jobs)
    timed = run_in_turns(methods, Work(jobs, []), 1, lambda what: advance(what, None))
    return {
        length: round(timed[key(method)].tokens_per_s[0], 3)
        for length, method in zip(plan.lengths, methods, strict=True)
    }


def _methods(bench: _Bench, plan: PairPlan, num_draft_tokens: int) -> list[Method]:
    """In the order of the table."""
    ours, quantization = bench.workbench, bench.models.quantization
    ngram = ours.drafts(SpeculativeConfig(method="ngram", num_speculative_tokens=MAX_DRAFT_TOKENS))
    methods = [transformers_method(bench.baseline)]
    methods += [transformers_method(bench.baseline, each) for each in ASSISTANCES]
    methods.append(plain_method(ours))
    methods.append(our_method(ours, "speculative", bench.drafts[quantization], num_draft_tokens))
    for other, drafts in bench.drafts.items():
        if other != quantization:
            name = f"speculative, {'unquantized' if other == 'none' else other} draft"
            methods.append(our_method(ours, name, drafts, num_draft_tokens))
    methods.append(our_method(ours, "speculative, n-gram", ngram, num_draft_tokens))
    for batch_size in plan.batch_sizes:
        methods.append(plain_method(ours, batch_size))
        methods.append(our_method(ours, "speculative", bench.drafts[quantization], num_draft_tokens, batch_size))
    return methods


def _warm_up(methods: Sequence[Method], jobs: Sequence[Job]) -> None:
    """Touch every weight once; methods of larger batches use the same engines."""
    job = jobs[0]
    short = Job(job.name, job.prompt_token_ids[:WARM_UP_TOKENS], job.law, WARM_UP_TOKENS)
    for method in methods:
        if method.batch_size == 1:
            method.answer([short])
