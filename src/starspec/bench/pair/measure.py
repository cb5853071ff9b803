"""`starspec bench pair`: our plain and speculative decoding beside transformers, in turns over the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starspec.bench.baseline import Assistance, TransformersBaseline
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
from starspec.bench.pair.rows import (
    PairRow,
    StepRow,
    measure_steps,
    pair_row,
    pair_table,
    plain_answers,
    ratios_of,
    step_table,
)
from starspec.config import FIXED_LENGTH, Quantization, SpeculativeConfig
from starspec.engine.drafts import Drafts
from starspec.harness.datasets import Prompt, check_fit, spread
from starspec.harness.decode import Advance, Job
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import Provenance, collect_provenance
from starspec.harness.table import Block, ratio_lines
from starspec.harness.workbench import GREEDY, Workbench
from starspec.models.packed import PackedRunner

ASSISTANCES = (Assistance("heuristic"), Assistance("constant", 3), Assistance("constant", 5))
QUANTIZATIONS: tuple[Quantization, ...] = ("int4", "int8", "none")  # of the drafts, in the order of the table
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
    num_trial_prompts: int = 4  # of all files together, in the trial before
    lengths: tuple[int, ...] = (2, 3, 4, 5, 6)  # K tried there


QUICK = PairPlan(
    num_prompts=1,
    num_batch_prompts=4,
    batch_sizes=(MAX_BATCH_SIZE,),
    max_tokens=24,
    num_repeats=1,
    num_trial_prompts=1,
    lengths=(3, 5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """What `starspec bench pair` saves."""

    provenance: Provenance
    rows: list[PairRow]
    ratios: dict[str, float]
    outputs_identical: bool  # whether all our methods gave the same tokens
    best_num_draft_tokens: int
    tokens_per_s_by_length: dict[int, float]  # of the trial
    tokens_per_s_by_assistance: dict[str, float]  # of the trial, for each way to configure transformers' assistant
    steps: list[StepRow]  # of the target; empty for a synthetic one
    numerics: str
    prompts: list[str]


@dataclass(slots=True)
class _Bench:
    """The loaded models and the requests."""

    models: ModelPair
    workbench: Workbench
    jobs: list[Job]  # one at a time
    batch_jobs: list[Job]
    baseline: TransformersBaseline
    drafts: dict[Quantization, Drafts] = field(default_factory=dict)  # by the draft's quantization


def measure_pair(
    models: ModelPair, prompt_files: Sequence[Sequence[Prompt]], plan: PairPlan, advance: Advance
) -> PairReport:
    """Load the models, find the best settings of both sides in a trial, then time all methods in turns.

    The trial decides our speculation length and the schedule of transformers' assisted generation.

    Args:
        prompt_files: `plan.num_prompts` of each are used, evenly spread.
    Raises: as check_fit; ModelError, VocabularyMismatch.
    """
    advance("loading the target", 2 + 3)
    bench = _load(models, prompt_files, plan, lambda what: advance(what, None))
    trial = _try_out(bench, plan, advance)
    best = trial.best_length
    advance("profiling steps", None)
    runner = bench.workbench.runner
    steps = measure_steps(runner, (1, best + 1)) if isinstance(runner, PackedRunner) else []
    methods = _methods(bench, plan, trial)
    advance("measuring", 1 + num_turns(methods, len(bench.jobs), plan.num_repeats))
    _warm_up(methods, bench.jobs)
    work = Work(bench.jobs, bench.batch_jobs)
    timed = run_in_turns(methods, work, plan.num_repeats, lambda what: advance(what, None))
    plain = plain_answers(methods, timed)
    rows = [pair_row(method, timed[key(method)], plain) for method in methods]
    return PairReport(
        provenance=collect_provenance(models.names),
        rows=rows,
        ratios=ratios_of(rows),
        outputs_identical=all(
            row.num_same_as_plain == row.num_answers
            for row, method in zip(rows, methods, strict=True)
            if method.is_ours
        ),
        best_num_draft_tokens=best,
        tokens_per_s_by_length=trial.by_length,
        tokens_per_s_by_assistance={each.name: rate for each, rate in trial.by_assistance.items()},
        steps=steps,
        numerics=bench.workbench.numerics_report,
        prompts=[job.name for job in bench.jobs],
    )


def _load(
    models: ModelPair, prompt_files: Sequence[Sequence[Prompt]], plan: PairPlan, advance: Callable[[str], None]
) -> _Bench:
    target, nums = models.target_config(MAX_BATCH_SIZE), (plan.num_prompts, plan.num_batch_prompts)
    check_fit([prompt for num in nums for prompt in _share(prompt_files, num)], target)
    workbench = Workbench(target, models.speculative())
    jobs, batch_jobs = (workbench.jobs(_share(prompt_files, num), GREEDY, plan.max_tokens) for num in nums)
    advance("loading into transformers what it can read")
    baseline = TransformersBaseline(
        models.target, models.dtype, workbench.runner.info.eos_token_ids, draft=_assistant(models)
    )
    bench = _Bench(models, workbench, jobs, batch_jobs, baseline)
    for quantization in QUANTIZATIONS:
        advance(f"loading the draft, {quantization}")
        bench.drafts[quantization] = workbench.drafts(
            models.speculative(quantization=quantization, num_speculative_tokens=MAX_DRAFT_TOKENS)
        )
    return bench


def _assistant(models: ModelPair) -> str | None:
    """What can assist transformers' `generate`: a causal LM. An EAGLE head cannot run alone."""
    return None if models.has_head else models.draft


def _share(prompt_files: Sequence[Sequence[Prompt]], num: int) -> list[Prompt]:
    """`num` prompts of each file."""
    return [prompt for prompts in prompt_files for prompt in spread(prompts, num)]


@dataclass(frozen=True, slots=True)
class _Trial:
    """The trial before: tokens a second of each setting, over a few prompts."""

    by_length: dict[int, float]
    by_assistance: dict[Assistance, float]

    @property
    def best_length(self) -> int:
        return max(self.by_length, key=lambda length: self.by_length[length])

    @property
    def best_assistance(self) -> list[Assistance]:
        """The fastest one; empty without an assistant."""
        return sorted(self.by_assistance, key=lambda assistance: -self.by_assistance[assistance])[:1]


def _try_out(bench: _Bench, plan: PairPlan, advance: Advance) -> _Trial:
    jobs = spread(bench.jobs, plan.num_trial_prompts)
    drafts = bench.drafts[bench.models.quantization]
    ours = {length: our_method(bench.workbench, f"K = {length}", drafts, length) for length in plan.lengths}
    assistances = ASSISTANCES if _assistant(bench.models) else ()
    theirs = {assistance: transformers_method(bench.baseline, assistance) for assistance in assistances}
    methods = [*ours.values(), *theirs.values()]
    advance("trying speculation lengths", 1 + num_turns(methods, len(jobs), 1))
    _warm_up([methods[0], methods[-1]], jobs)
    timed = run_in_turns(methods, Work(jobs, []), 1, lambda what: advance(what, None))
    rates = {name: round(runs.tokens_per_s[0], 3) for name, runs in timed.items()}
    return _Trial(
        {length: rates[method.name] for length, method in ours.items()},
        {assistance: rates[method.name] for assistance, method in theirs.items()},
    )


def _methods(bench: _Bench, plan: PairPlan, trial: _Trial) -> list[Method]:
    """The methods in the order of the table."""
    num_draft_tokens = trial.best_length
    ours, quantization = bench.workbench, bench.models.quantization
    ngram = ours.drafts(SpeculativeConfig(method="ngram", num_speculative_tokens=MAX_DRAFT_TOKENS, length=FIXED_LENGTH))
    methods = [transformers_method(bench.baseline, each) for each in (None, *trial.best_assistance)]
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
    """Use every weight once. Methods with larger batches use the same weights."""
    job = jobs[0]
    short = Job(job.name, job.prompt_token_ids[:WARM_UP_TOKENS], job.sampling, WARM_UP_TOKENS)
    for method in methods:
        if method.batch_size == 1:
            method.answer([short])


def blocks(report: PairReport) -> list[Block]:
    """What people read."""
    lengths = {f"K = {length}": rate for length, rate in report.tokens_per_s_by_length.items()}
    assistance = report.tokens_per_s_by_assistance
    return [
        pair_table(report.rows),
        *([step_table(report.steps)] if report.steps else []),
        f"numerics: {report.numerics}",
        _trial_line("speculation lengths", lengths),
        *([_trial_line("transformers assisted", assistance)] if assistance else []),
        *ratio_lines(report.ratios),
    ]


def _trial_line(what: str, rates: Mapping[str, float]) -> str:
    return f"tried before, {what}: {', '.join(f'{name} {rate:.1f}' for name, rate in rates.items())} tokens/s"
