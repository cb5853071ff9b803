"""`starspec bench relaxed`: the same problems, plainly and with each tau, in turns; then every answer is graded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from starspec.bench.relaxed.grading import is_same_number, program_of
from starspec.bench.relaxed.plan import RelaxedPlan
from starspec.bench.relaxed.problems import Problem, Task, check_may_run
from starspec.bench.relaxed.program import Outcome, check_programs_run, run_program
from starspec.bench.relaxed.rows import RelaxedReport, Runs, ratios_of, relaxed_rows
from starspec.engine.drafts import NoDrafts
from starspec.engine.engine import TargetEngine
from starspec.harness.datasets import hash_prompts, prompt_token_ids
from starspec.harness.decode import Advance, Job, JobResult, decode, make_engine
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.workbench import Sampling, Workbench
from starspec.local_star import LocalHub
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.policy.length.make import make_policy
from starspec.speculation.acceptance import RULES, KeyThresholds
from starspec.stats import TargetStats

WARM_UP_TOKENS: Final = 8  # of an answer


class _Bench:
    """The loaded pair, and the problems as requests."""

    def __init__(
        self, models: ModelPair, problems: Sequence[Problem], plan: RelaxedPlan, thresholds: KeyThresholds
    ) -> None:
        tokenizer = load_tokenizer(models.target)
        prompts = [problem.prompt for problem in problems]
        longest = max(len(prompt_token_ids(tokenizer, each)) for each in prompts)
        models = replace(models, max_model_len=longest + plan.max_tokens)
        speculative = models.speculative(
            num_speculative_tokens=plan.num_draft_tokens,
            draft_p_min=plan.draft_p_min,
            rejection_sample_method=plan.rejection_sample_method,
        )
        self.plan = plan
        self.problems = problems
        places = {task: [at for at, problem in enumerate(problems) if problem.task is task] for task in Task}
        self.places = {task: found for task, found in places.items() if found}  # of each task's problems
        self.workbench = bench = Workbench(models.target_config(plan.batch_size), speculative)
        self.hub = LocalHub(bench.config, bench.runner.info, speculative, bench.tokenizer)
        # each tau is another target to the hub, so that none starts from the prefill of one that was measured before it
        drafts = {tau: self.hub.drafts(make_policy(speculative), TargetStats()) for tau in plan.all_taus}
        self._engines: dict[float | None, TargetEngine] = {None: make_engine(bench.runner, bench.tokenizer, NoDrafts())}
        for tau, each in drafts.items():
            self._engines[tau] = make_engine(bench.runner, bench.tokenizer, each, thresholds=thresholds)
        jobs = self.workbench.jobs(prompts, Sampling(temperature=plan.temperature), plan.max_tokens)
        self.jobs = [replace(job, stop=each.task.stops) for job, each in zip(jobs, problems, strict=True)]

    @property
    def num_ways(self) -> int:
        """Plain decoding, and each tau."""
        return 1 + len(self.plan.all_taus)

    @property
    def num_groups(self) -> int:
        return sum(math.ceil(len(found) / self.plan.batch_size) for found in self.places.values())

    def jobs_of(self, task: Task) -> list[Job]:
        return [self.jobs[place] for place in self.places[task]]

    def answer(self, jobs: Sequence[Job], tau: float | None) -> list[JobResult]:
        """Args: tau: None = plain decoding."""
        asked = [replace(job, relaxed_tau=tau or 0.0) for job in jobs]
        return decode(self._engines[tau], asked, batch_size=len(asked), is_staggered=False)

    def text(self, answer: JobResult) -> str:
        return str(self.workbench.tokenizer.decode(answer.token_ids, skip_special_tokens=True))

    def warm_up(self) -> float:
        """Use every weight. Returns: about the seconds that all problems take if no answer ends early."""
        group = [replace(job, max_tokens=WARM_UP_TOKENS) for job in self.jobs[: self.plan.batch_size]]
        seconds = []
        for tau in (None, 0.0):
            self.answer(group, tau)
            seconds.append(seconds_of_group(self.answer(group, tau), self.plan.max_tokens))
        return self.num_groups * (seconds[0] + len(self.plan.all_taus) * seconds[1])


def seconds_of_group(answers: Sequence[JobResult], max_tokens: int) -> float:
    """About what a group of answers takes, from short ones, if all have `max_tokens` tokens."""
    prompts_s = max(each.stats.time_to_first_token_s for each in answers)
    token_s = [each.stats.generation_s / (len(each.token_ids) - 1) for each in answers if len(each.token_ids) > 1]
    return prompts_s + max(token_s, default=0.0) * max_tokens


def outcome_of(problem: Problem, text: str) -> Outcome:
    """Whether an answer is right. Effects: runs the program of a HumanEval problem."""
    if problem.task is Task.HUMAN_EVAL:
        return run_program(program_of(problem.prompt.text, text, problem.reference))
    return "passed" if is_same_number(problem.reference, text) else "failed"


def measure_relaxed(
    models: ModelPair,
    problems: Sequence[Problem],
    plan: RelaxedPlan,
    thresholds: KeyThresholds,
    advance: Advance,
    *,
    may_run_code: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> RelaxedReport:
    """Load the pair, answer the problems of each task in groups with every way in turns, and grade the answers.

    An interrupt (Ctrl-C) while problems are answered ends that, and keeps the groups that were answered in every way.

    Args:
        problems: at least one.
        may_run_code: whether programs that the model writes may run on this machine.
        clock: seconds; times the groups.
    Raises: ConfigError if HumanEval cannot or may not be graded; ModelError; VocabularyMismatch; KeyboardInterrupt if
        no group was answered yet.
    """
    check_may_run(problems, may_run_code)
    if any(problem.task is Task.HUMAN_EVAL for problem in problems):
        check_programs_run()
    bench = _Bench(models, problems, plan, thresholds)
    advance("warming up", 0)
    bound = f"at most about {max(1, math.ceil(bench.warm_up() / 60))} min"
    num_turns = bench.num_groups * bench.num_ways
    advance(f"answering {len(problems)} problems in {bench.num_ways} ways, {bound}", 1 + num_turns)
    runs, is_whole = _answer_all(bench, lambda what: advance(f"{what} ({bound} in all)", None), clock)
    advance("grading", 1 + sum(len(each.answers) for ways in runs.values() for each in ways))
    for task, ways in runs.items():
        _grade(bench, task, ways, advance)
    rows = [row for task, ways in runs.items() for row in relaxed_rows(task, bench.jobs_of(task), ways)]
    return RelaxedReport(
        provenance=collect_provenance(models.names),
        is_whole=is_whole,
        rows=rows,
        ratios=ratios_of(rows),
        is_promised=bench.workbench.promises_equality and RULES[plan.rejection_sample_method].promise == "exact",
        thresholds=thresholds,
        rejection_sample_method=plan.rejection_sample_method,
        num_draft_tokens=plan.num_draft_tokens,
        draft_p_min=plan.draft_p_min,
        draft_quantization=models.quantization,
        dtype=models.dtype,
        batch_size=plan.batch_size,
        temperature=plan.temperature,
        max_tokens=plan.max_tokens,
        numerics=bench.workbench.numerics_report,
        prompts_sha256=hash_prompts([problem.prompt for problem in problems]),
    )


def _answer_all(
    bench: _Bench, advance: Callable[[str], None], clock: Callable[[], float]
) -> tuple[dict[Task, list[Runs]], bool]:
    """Each task's problems in every way, and whether that was not interrupted. Raises: as `measure_relaxed`."""
    runs = {task: [Runs(tau) for tau in (None, *bench.plan.all_taus)] for task in bench.places}
    try:
        for task, ways in runs.items():
            _in_turns(bench, task, ways, advance, clock)
    except KeyboardInterrupt:
        answered = {task: ways for task, ways in runs.items() if ways[0].answers}
        if not answered:
            raise
        return answered, False
    return runs, True


def _in_turns(
    bench: _Bench, task: Task, ways: Sequence[Runs], advance: Callable[[str], None], clock: Callable[[], float]
) -> None:
    """Answer a task's problems group by group, each group in every way, so that a slow moment slows all of them.

    Which way is first changes from group to group. Effects: whole groups are added to the ways.
    """
    jobs, size = bench.jobs_of(task), bench.plan.batch_size
    for number, start in enumerate(range(0, len(jobs), size)):
        timed: dict[float | None, tuple[list[JobResult], float]] = {}
        first = number % len(ways)
        for each in (*ways[first:], *ways[:first]):
            advance(f"{task.value} {start + 1} of {len(jobs)}, {each.name}")
            started_s = clock()
            answers = bench.answer(jobs[start : start + size], each.tau)
            timed[each.tau] = answers, clock() - started_s
        for each in ways:
            each.add(*timed[each.tau])


def _grade(bench: _Bench, task: Task, ways: Sequence[Runs], advance: Advance) -> None:
    """Grade all answers; equal answers to one problem once. Effects: `outcomes` of the ways."""
    for number in range(len(ways[0].answers)):
        problem, known = bench.problems[bench.places[task][number]], dict[str, Outcome]()
        for each in ways:
            advance(f"grading {problem.prompt.name}, {each.name}", None)
            text = bench.text(each.answers[number])
            if text not in known:
                known[text] = outcome_of(problem, text)
            each.outcomes.append(known[text])
