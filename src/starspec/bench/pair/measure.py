"""`starspec bench pair`: plain, speculative and transformers, taking turns over the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from starspec.bench.baseline import Assistance, TransformersBaseline
from starspec.bench.datasets import Prompt, spread
from starspec.bench.decode import Job
from starspec.bench.pair.methods import (
    Method,
    Timed,
    key,
    num_turns,
    our_method,
    plain_method,
    run_in_turns,
    transformers_method,
)
from starspec.bench.provenance import Provenance, collect_provenance
from starspec.bench.report import Spread
from starspec.bench.workbench import GREEDY, Workbench
from starspec.config import ModelConfig, SpeculativeConfig
from starspec.target.drafts import Drafts

ASSISTANCES = (Assistance("heuristic"), Assistance("constant", 3), Assistance("constant", 5))
BATCH_SIZES = (4, 8)
MAX_DRAFT_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """How much to measure."""

    num_prompts: int = 8  # of each file
    max_tokens: int = 96
    num_repeats: int = 3
    lengths: tuple[int, ...] = (2, 3, 4, 5, 6)  # K tried in the run before
    num_length_prompts: int = 2  # of each file, in the run before
    num_warm_up_tokens: int = 8


QUICK = PairPlan(num_prompts=1, max_tokens=40, num_repeats=1, lengths=(3, 4, 5), num_length_prompts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """One method."""

    method: str
    batch_size: int
    num_draft_tokens: int | None
    num_tokens: int  # emitted in one repeat
    tokens_per_s: Spread  # over the repeats; prompt processing included
    seconds: float  # median of the repeats
    acceptance_length: float | None
    acceptance_rate: float | None
    block_efficiency: float | None
    num_same_as_plain: int  # answers that are those of our plain decoding
    num_answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """What `starspec bench pair` saves."""

    provenance: Provenance
    rows: list[PairRow]
    ratios: dict[str, float]
    outputs_identical: bool  # ours, whatever the drafts and the batch
    best_num_draft_tokens: int
    tokens_per_s_by_length: dict[int, float]  # of the run before
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
            num_rows=max(BATCH_SIZES),
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
    jobs: list[Job]
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
    methods = _methods(bench, best)
    advance("warming up", 1 + num_turns(methods, len(bench.jobs), plan.num_repeats))
    _warm_up(methods, bench.jobs, plan)
    timed = run_in_turns(methods, bench.jobs, plan.num_repeats, lambda what: advance(what, None))
    rows = [_row(method, timed[key(method)], timed["plain"]) for method in methods]
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
        numerics=bench.workbench.numerics_report,
        prompts=[job.name for job in bench.jobs],
    )


def ratios_of(rows: Sequence[PairRow]) -> dict[str, float]:
    """Medians against medians, of one request at a time."""
    rate = {row.method: row.tokens_per_s.median for row in rows if row.batch_size == 1}
    assisted = max(value for name, value in rate.items() if name.startswith("transformers assisted"))
    return {
        "speculative_vs_plain": round(rate["speculative"] / rate["plain"], 3),
        "plain_vs_generate": round(rate["plain"] / rate["transformers generate"], 3),
        "speculative_vs_assisted": round(rate["speculative"] / assisted, 3),
    }


def _load(
    models: PairModels, prompt_files: Sequence[Sequence[Prompt]], plan: PairPlan, advance: Callable[[str], None]
) -> _Bench:
    workbench = Workbench(models.target_config())
    prompts = [prompt for prompts in prompt_files for prompt in spread(prompts, plan.num_prompts)]
    jobs = workbench.jobs(prompts, GREEDY, plan.max_tokens)
    advance("loading both models into transformers")
    baseline = TransformersBaseline(
        models.target, models.dtype, workbench.runner.info.eos_token_ids, draft=models.draft
    )
    bench = _Bench(models, workbench, jobs, baseline)
    for quantization in ("int4", "int8", "none"):
        advance(f"loading the draft, {quantization}")
        bench.drafts[quantization] = workbench.drafts(models.speculative(quantization))
    return bench


def _try_lengths(bench: _Bench, plan: PairPlan, advance: Advance) -> dict[int, float]:
    """Tokens a second for each speculation length, on a few prompts."""
    jobs = spread(bench.jobs, len(bench.jobs) * plan.num_length_prompts // plan.num_prompts)
    drafts = bench.drafts[bench.models.quantization]
    methods = [our_method(bench.workbench, f"K = {length}", drafts, length) for length in plan.lengths]
    advance("trying speculation lengths", 1 + num_turns(methods, len(jobs), 1))
    _warm_up(methods[:1], jobs, plan)
    timed = run_in_turns(methods, jobs, 1, lambda what: advance(what, None))
    return {
        length: round(timed[key(method)].tokens_per_s[0], 3)
        for length, method in zip(plan.lengths, methods, strict=True)
    }


def _methods(bench: _Bench, num_draft_tokens: int) -> list[Method]:
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
    for batch_size in BATCH_SIZES:
        methods.append(plain_method(ours, batch_size))
        methods.append(our_method(ours, "speculative", bench.drafts[quantization], num_draft_tokens, batch_size))
    return methods


def _warm_up(methods: Sequence[Method], jobs: Sequence[Job], plan: PairPlan) -> None:
    job = jobs[0]
    short = Job(job.name, job.prompt_token_ids, job.law, plan.num_warm_up_tokens)
    for method in methods:
        method.answer([short])


def _row(method: Method, timed: Timed, plain: Timed) -> PairRow:
    acceptance = timed.acceptance if method.is_ours and method.num_draft_tokens else None
    return PairRow(
        method=method.name,
        batch_size=method.batch_size,
        num_draft_tokens=method.num_draft_tokens,
        num_tokens=timed.num_tokens,
        tokens_per_s=Spread.of([round(rate, 3) for rate in timed.tokens_per_s]),
        seconds=round(median(timed.seconds), 3),
        acceptance_length=round(acceptance.acceptance_length, 3) if acceptance else None,
        acceptance_rate=round(acceptance.acceptance_rate, 3) if acceptance else None,
        block_efficiency=round(acceptance.block_efficiency, 3) if acceptance else None,
        num_same_as_plain=sum(
            timed.answers[name].token_ids == answer.token_ids for name, answer in plain.answers.items()
        ),
        num_answers=len(timed.answers),
    )
