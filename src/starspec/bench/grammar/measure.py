"""Answers to JSON schemas with every kind of draft: do they validate, and are they those without drafts?

Each draft is measured three times: within the schema; within it, but without drafting what it forces; and without it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starspec.bench.grammar.plan import GrammarPlan
from starspec.bench.grammar.schemas import SCHEMAS, Schema
from starspec.bench.random_drafts import RandomDrafts, RandomTrees
from starspec.config import FIXED_LENGTH, SpeculativeConfig
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.engine.sequence import TargetSequence
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, spread
from starspec.harness.decode import Advance, Job, JobResult, decode, make_engine
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.recorder import DraftsAround
from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table
from starspec.harness.workbench import Sampling, Workbench
from starspec.local_star import check_drafts
from starspec.sampling.grammar import GrammarSpec
from starspec.stats import TargetStats

MAX_QUESTION: Final = 600  # characters of a schema that a prompt shows
FREQUENCY_PENALTY: Final = 1.0  # numbers and recursion have no end: a small model goes on and on
OFF, LIARS = "off", ("half-liar", "lying tree")
NUM_RUNS: Final = 3  # of one draft, as below


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarRow:
    """One draft under one temperature."""

    sampling: str
    draft: str
    num_answers: int
    num_valid: int  # complete, and jsonschema finds no fault in them
    num_cut: int  # after the largest number of tokens
    num_identical: int  # to those without drafts
    num_tokens: int
    forced_share: float  # of the tokens: those that were verified as drafts because the grammar forces them
    block_efficiency: float  # tokens for each forward
    block_efficiency_unforced: float | None  # the same without drafting what is forced; None = not measured
    block_efficiency_free: float | None  # without a schema
    grammar_us_per_token: float  # what the grammar takes: masks, steps, looks at drafts


class Unforced(DraftsAround):
    """The same drafts, without the tokens that a grammar forces."""

    drafts_forced = False


@dataclass(frozen=True, slots=True)
class _Run:
    answers: list[JobResult]
    stats: TargetStats

    @property
    def block_efficiency(self) -> float:
        return self.stats.acceptance.block_efficiency


class GrammarBench:
    """The target, loaded once, and the schemas."""

    def __init__(self, models: ModelPair, head: str | None, plan: GrammarPlan) -> None:
        self.plan = plan
        target = models.target_config(plan.batch_size)
        if head is not None:
            check_drafts(target, SpeculativeConfig(model=head))
        self.workbench = Workbench(target, models.speculative())
        self.names: list[str] = spread(list(SCHEMAS), plan.num_schemas)
        self._models = models
        self._head = head
        self._known = KnownPrompts()
        self._plain: Sequence[JobResult] = ()  # of the jobs that run now

    @property
    def kinds(self) -> list[str]:
        """Drafts to compare with none."""
        return ["draft", *(["head"] if self._head else []), "ngram", *LIARS]

    def jobs(self, sampling: Sampling) -> list[Job]:
        """A question about each schema, held to it."""
        questions = {name: f"Give an example of this JSON schema: {_text(SCHEMAS[name])}" for name in self.names}
        prompts = [Prompt(name, "plain", text[:MAX_QUESTION]) for name, text in questions.items()]
        jobs = self.workbench.jobs(prompts, sampling, self.plan.max_tokens)
        return [
            replace(
                job,
                grammar=GrammarSpec("json", _text(SCHEMAS[job.name])),
                sampling=replace(job.sampling, frequency_penalty=FREQUENCY_PENALTY),
            )
            for job in jobs
        ]

    def rows(self, temperature: float, advance: Callable[[str], None]) -> Iterator[GrammarRow]:
        """One row for each kind of draft, the first without any."""
        sampling = Sampling(temperature=temperature)
        jobs = self.jobs(sampling)
        free = [replace(job, grammar=None, max_tokens=self.plan.free_tokens) for job in jobs]
        advance(f"{sampling.name}: {OFF}")
        plain = self._run(jobs, NoDrafts())
        self._plain = plain.answers
        yield self._row(sampling, OFF, plain)
        for kind in self.kinds:
            drafts = self._drafts(kind)
            advance(f"{sampling.name}: {kind}")
            held = self._run(jobs, drafts)
            if kind in LIARS:
                yield self._row(sampling, kind, held)
                continue
            advance(f"{sampling.name}: {kind}, nothing forced")
            unforced = self._run(jobs, Unforced(drafts))
            advance(f"{sampling.name}: {kind}, no schema")
            yield self._row(sampling, kind, held, unforced, self._run(free, drafts))
            drafts.shutdown()

    def _run(self, jobs: Sequence[Job], drafts: Drafts) -> _Run:
        stats = TargetStats()
        runner = self._known.prefilling_once(self.workbench.runner)
        engine = make_engine(runner, self.workbench.tokenizer, drafts, stats)
        return _Run(decode(engine, jobs, batch_size=self.plan.batch_size), stats)

    def _drafts(self, kind: str) -> Drafts:
        length, size = self.plan.num_draft_tokens, self.workbench.runner.info.vocab_size
        match kind:
            case "half-liar":
                return RandomDrafts(size, length, seed=1, true_tokens=self._true_tokens)
            case "lying tree":
                return RandomTrees(size, length, width=3, seed=3, true_tokens=self._true_tokens)
            case "ngram":
                config = SpeculativeConfig(method="ngram", num_speculative_tokens=length, length=FIXED_LENGTH)
            case "head":
                config = SpeculativeConfig(model=self._head, num_speculative_tokens=length, length=FIXED_LENGTH)
            case _:
                config = self._models.speculative(num_speculative_tokens=length)
        return self.workbench.drafts(config)

    def _true_tokens(self, sequence: TargetSequence) -> list[int]:
        answer = self._plain[int(sequence.request_id.removeprefix("job-"))]
        return answer.token_ids[sequence.num_output_tokens :]

    def _row(
        self, sampling: Sampling, kind: str, held: _Run, unforced: _Run | None = None, free: _Run | None = None
    ) -> GrammarRow:
        spent = held.stats.grammars
        others = [held.answers] if unforced is None else [held.answers, unforced.answers]
        return GrammarRow(
            sampling=sampling.name,
            draft=kind,
            num_answers=len(held.answers),
            num_valid=sum(map(self._is_valid, self.names, held.answers)),
            num_cut=sum(each.finish_reason == "length" for each in held.answers),
            num_identical=sum(_are_same(each) for each in zip(self._plain, *others, strict=True)),
            num_tokens=spent.num_tokens,
            forced_share=spent.num_forced_tokens / spent.num_tokens,
            block_efficiency=held.block_efficiency,
            block_efficiency_unforced=None if unforced is None else unforced.block_efficiency,
            block_efficiency_free=None if free is None else free.block_efficiency,
            grammar_us_per_token=1e6 * spent.spent_s / spent.num_tokens,
        )

    def _is_valid(self, name: str, answer: JobResult) -> bool:
        text = self.workbench.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        return answer.finish_reason == "stop" and is_valid(text, SCHEMAS[name])


def measure_grammar(models: ModelPair, head: str | None, plan: GrammarPlan, advance: Advance) -> Report:
    """Args: head: an EAGLE head of the target; None = none drafts. Raises: as Workbench and local_drafts."""
    check_validator()
    bench = GrammarBench(models, head, plan)
    num_liars = len(LIARS)
    num_runs = 1 + num_liars + NUM_RUNS * (len(bench.kinds) - num_liars)
    advance("answering", num_runs * len(plan.temperatures))
    rows = [row for each in plan.temperatures for row in bench.rows(each, lambda what: advance(what, None))]
    named = models.names | ({"head": head} if head else {})
    notes = {"quantization": models.quantization, "dtype": models.dtype, "numerics": bench.workbench.numerics_report}
    return Report(collect_provenance(named), rows, notes=notes)


def mistakes_of(report: Report) -> list[str]:
    """What must not be."""
    return [
        f"{row.sampling}, {row.draft}: {num} {sentence}"
        for row in report.rows
        for num, sentence in (
            (row.num_answers - row.num_valid - row.num_cut, "answers do not validate"),
            (row.num_answers - row.num_identical, "answers changed"),
        )
        if num
    ]


def blocks(report: Report) -> list[Block]:
    """What people read."""
    columns = [
        Column("sampling", "sampling"),
        Column("draft", "draft", is_text=True),
        Column("valid", lambda row: f"{row.num_valid}/{row.num_answers}"),
        Column("cut", "num_cut"),
        Column("identical", lambda row: f"{row.num_identical}/{row.num_answers}"),
        Column("tokens", "num_tokens"),
        Column("forced", "forced_share", ".0%"),
        Column("tokens/forward", "block_efficiency", ".2f"),
        Column("nothing forced", "block_efficiency_unforced", ".2f"),
        Column("no schema", "block_efficiency_free", ".2f"),
        Column("grammar us/token", "grammar_us_per_token", ".0f"),
    ]
    return [Table("answers to JSON schemas", columns, report.rows, section="sampling")]


def check_validator() -> None:
    """Raises: ConfigError if jsonschema is not installed."""
    try:
        importlib.import_module("jsonschema")
    except ImportError as error:
        raise ConfigError("answers are checked with jsonschema, which is not installed") from error


def is_valid(text: str, schema: Schema) -> bool:
    """Whether a text is JSON of this schema, as jsonschema finds."""
    validator = importlib.import_module("jsonschema").Draft202012Validator
    try:
        return bool(validator(schema).is_valid(json.loads(text)))
    except json.JSONDecodeError:
        return False


def _are_same(answers: Sequence[JobResult]) -> bool:
    return all(each.token_ids == answers[0].token_ids for each in answers)


def _text(schema: Schema) -> str:
    return json.dumps(schema, ensure_ascii=False)
