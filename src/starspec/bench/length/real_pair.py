"""`starspec bench length --target --draft`: every length policy beside every fixed length, on real models.

A hub in this process drafts for all rivals, each of which is a target of its own for it. In each cell a rival's target
stays connected from its warm-up to its last repeat, so what its policy has learnt stays too, as in a server. Rivals
take turns. Only rounds are timed, and only those with as many sequences as the batch holds. A prompt's prefill by
target and draft, with its first proposal, is not part of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from starspec.bench.batch.methods import MethodRun, run_method
from starspec.bench.batch.plan import BatchMethod
from starspec.bench.length.categories import by_category, fitting_in, spread_repeated
from starspec.bench.length.real_plan import WARM_SHARE, RealPlan
from starspec.bench.length.real_rows import Cell, RealReport, RivalRow, ratios_of, rival_rows
from starspec.bench.length.rivals import PLAIN, Rival, default_rival
from starspec.bench.length.signals import (
    STATING,
    SignalRecorder,
    TokenSignals,
    WeighedTransport,
    WireBytes,
    paper_rows,
    signal_row,
    wire_rows,
)
from starspec.config import HubConfig
from starspec.engine.drafts import Drafts, NoDrafts
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.harness.compare import Divergence, divergences
from starspec.harness.datasets import Prompt
from starspec.harness.decode import Advance, Job, JobResult, decode, make_engine
from starspec.harness.known_prompts import KnownPrompts
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.workbench import Sampling, Workbench
from starspec.local_star import NO_DEADLINE_S, LocalHub, check_drafts
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.make import make_policy
from starspec.stats import TargetStats

SHARED: Final = HubConfig(share_prefixes="hub")  # so that each prompt is prefilled once for all rivals
PROBE_TOKENS: Final = 4  # of answers that time plain rounds before
ALL: Final = "all"  # categories together


Runs = dict[Rival, list[MethodRun]]


class _Bench:
    """The loaded models, one category at a time."""

    def __init__(self, drafters: Mapping[str, ModelPair], plan: RealPlan) -> None:
        self.plan = plan
        self.drafters = {
            name: replace(pair, max_model_len=plan.max_prompt_tokens + plan.max_tokens)
            for name, pair in drafters.items()
        }
        first, *others = self.drafters.values()
        for pair in others:
            check_drafts(pair.target_config(), pair.speculative())
        self.workbench = Workbench(first.target_config(max(plan.all_batch_sizes)), first.speculative())
        # a prefilled prompt keeps its row; a sequence that ends first must not free the row of the next one
        like_target = replace(self.workbench.config, num_rows=2 * plan.most_jobs)
        self.hubs = {
            name: LocalHub(
                like_target, self.workbench.runner.info, pair.speculative(), self.workbench.tokenizer, SHARED
            )
            for name, pair in self.drafters.items()
        }
        self.known = KnownPrompts()
        self._references: dict[float, dict[int, JobResult]] = {}  # temperature -> job -> plain decoding's answer

    def begin_category(self) -> None:
        """Forget the prompts and the answers of the last one."""
        self.known = KnownPrompts()
        self._references = {}

    def jobs(self, prompts: Sequence[Prompt], temperature: float) -> list[Job]:
        """As many requests as the cell with most of them has; others have the first of these. A prompt that repeats
        has another seed."""
        chosen = spread_repeated(prompts, self.plan.most_jobs)
        return self.workbench.jobs(chosen, Sampling(temperature=temperature), self.plan.max_tokens)

    @contextmanager
    def contestants(self, cell: Cell) -> Iterator[dict[Rival, Drafts]]:
        """The rivals of a cell with their drafts, none of which has learnt anything."""
        drafts = {rival: self._drafts(rival, cell) for rival in self.plan.rivals_at(cell.batch_size)}
        try:
            yield drafts
        finally:
            for each in drafts.values():
                each.shutdown()

    def _drafts(self, rival: Rival, cell: Cell) -> Drafts:
        if rival.settings is None:
            return NoDrafts()
        config = self.drafters[cell.drafter].speculative(**rival.settings)
        return self.hubs[cell.drafter].drafts(make_policy(config, cell.batch_size), TargetStats())

    def run(self, rival: Rival, drafts: Drafts, batch_size: int, jobs: Sequence[Job]) -> MethodRun:
        """One run of one rival."""
        method = BatchMethod.named(PLAIN if rival.is_plain else "ragged", batch_size)
        return run_method(self.workbench, method, drafts, jobs, None, known=self.known)

    def differing(self, temperature: float, jobs: Sequence[Job], runs: Runs) -> dict[Rival, list[Divergence]]:
        """How the answers differ from the first plain ones of the same requests, at any batch size."""
        references = self._references.setdefault(temperature, {})
        (plain,) = (found[0] for rival, found in runs.items() if rival.is_plain)
        for index, answer in enumerate(plain.served.answers):
            references.setdefault(index, answer)
        runner = self.known.prefilling_once(self.workbench.runner)
        expected = [references[index] for index in range(len(jobs))]
        return {
            rival: [each for run in found for each in divergences(runner, jobs, expected, run.served.answers)]
            for rival, found in runs.items()
        }

    def signals(self, drafter: str, jobs: Sequence[Job], wire: WireBytes) -> list[TokenSignals]:
        """One pass with chains that state their likeliest tokens. Effects: counts the messages in `wire`."""
        link = WeighedTransport(self.hubs[drafter].connect(), wire)
        drafts = RemoteDrafts(link, FixedLength(STATING), TargetStats(), deadline_s=NO_DEADLINE_S)
        drafts.poll()  # the hub's feature layers are known before the first prompt
        recorder = SignalRecorder(drafts)
        try:
            runner = self.known.prefilling_once(self.workbench.runner)
            engine = make_engine(runner, self.workbench.tokenizer, recorder)
            decode(engine, jobs, batch_size=max(self.plan.batch_sizes), is_staggered=False)
        finally:
            drafts.shutdown()
        return recorder.tokens


def measure_real_pair(
    drafters: Mapping[str, ModelPair],
    files: Mapping[str, Sequence[Prompt]],
    plan: RealPlan,
    advance: Advance,
    clock: Callable[[], float] = time.perf_counter,
) -> RealReport:
    """Load the models and run all cells.

    Args:
        drafters: name -> the target with this draft; all have the same target.
        files: name -> prompts.
    Raises: ConfigError, before weights are read if no prompt of a category is short enough; ModelError;
        VocabularyMismatch.
    """
    advance("loading", None)
    tokenizer = load_tokenizer(next(iter(drafters.values())).target)
    categories = fitting_in(tokenizer, by_category(files, plan.categories), plan.max_prompt_tokens)
    bench = _Bench(drafters, plan)
    num_kinds = len(categories) * len(drafters)
    estimated_s = plan.estimate_s(_plain_rounds_s(bench, categories), num_kinds)
    advance(f"measuring, about {max(1, round(estimated_s / 60))} min", plan.num_turns(num_kinds))
    started_s, run = clock(), _Run(bench)
    is_whole = run.all(categories, lambda what: advance(what, None))
    pair = next(iter(bench.drafters.values()))
    names = {name: each.draft for name, each in drafters.items()}
    return RealReport(
        provenance=collect_provenance({"target": pair.target, **names}),
        is_whole=is_whole,
        rows=run.rows,
        ratios=ratios_of(run.rows),
        signals=[
            *(signal_row(*kind, tokens) for kind, tokens in run.signals.items()),
            *paper_rows(plan.temperatures),
        ],
        wire=[row for name, found in run.wire.items() for row in wire_rows(name, found)],
        default_method=default_rival().name,
        draft_quantization=pair.quantization,
        dtype=pair.dtype,
        numerics=bench.workbench.numerics_report,
        is_promised=bench.workbench.promises_equality,
        max_tokens=plan.max_tokens,
        max_prompt_tokens=plan.max_prompt_tokens,
        num_repeats=plan.num_repeats,
        estimated_s=round(estimated_s),
        seconds=round(clock() - started_s),
    )


class _Run:
    """What was found so far."""

    def __init__(self, bench: _Bench) -> None:
        self.rows: list[RivalRow] = []
        self.signals: dict[tuple[str, str, float], list[TokenSignals]] = {}  # by drafter, category and temperature
        self.wire = {drafter: WireBytes() for drafter in bench.drafters}
        self._bench = bench

    def all(self, categories: Mapping[str, Sequence[Prompt]], advance: Callable[[str], None]) -> bool:
        """Run all cells, and a pass for the signals of each drafter, category and temperature.

        An interrupt (Ctrl-C) ends it and keeps the cells so far, which may be hours of work.

        Returns: whether it was not interrupted. Raises: KeyboardInterrupt before the first cell is done.
        """
        try:
            for category, prompts in categories.items():
                self._bench.begin_category()
                for temperature in self._bench.plan.temperatures:
                    jobs = self._bench.jobs(prompts, temperature)
                    for drafter in self._bench.drafters:
                        self._cells(drafter, category, temperature, jobs, advance)
        except KeyboardInterrupt:
            if not self.rows:
                raise
            return False
        if len(categories) > 1:
            for (drafter, _, temperature), found in list(self.signals.items()):
                self.signals.setdefault((drafter, ALL, temperature), []).extend(found)
        return True

    def _cells(
        self, drafter: str, category: str, temperature: float, jobs: Sequence[Job], advance: Callable[[str], None]
    ) -> None:
        plan = self._bench.plan
        for size in plan.all_batch_sizes:
            cell = Cell(drafter, category, temperature, size)
            self.rows += _run_cell(self._bench, cell, jobs[: plan.num_jobs(size)], advance)
        advance(f"{drafter}, {category}, T={temperature:g}: signals")
        asked = jobs[: plan.num_jobs(max(plan.batch_sizes))]
        self.signals[drafter, category, temperature] = self._bench.signals(drafter, asked, self.wire[drafter])


def _run_cell(bench: _Bench, cell: Cell, jobs: Sequence[Job], advance: Callable[[str], None]) -> list[RivalRow]:
    """Warm up and time the rivals of one cell, in turns. Each repeat begins with another one."""
    short = [replace(job, max_tokens=job.max_tokens // WARM_SHARE) for job in jobs]
    with bench.contestants(cell) as contestants:
        for rival, drafts in contestants.items():
            advance(f"{cell.name}: {rival.name} warms up")
            bench.run(rival, drafts, cell.batch_size, short)
        rivals, runs = list(contestants), Runs((rival, []) for rival in contestants)
        for repeat in range(bench.plan.num_repeats):
            first = repeat % len(rivals)
            for rival in (*rivals[first:], *rivals[:first]):
                advance(f"{cell.name}: {rival.name}")
                runs[rival].append(bench.run(rival, contestants[rival], cell.batch_size, jobs))
    return rival_rows(cell, runs, bench.differing(cell.temperature, jobs, runs))


def _plain_rounds_s(bench: _Bench, categories: Mapping[str, Sequence[Prompt]]) -> dict[int, float]:
    """Batch size -> seconds of a plain round, over a few tokens of the first category."""
    plan = bench.plan
    jobs = [replace(job, max_tokens=PROBE_TOKENS) for job in bench.jobs(next(iter(categories.values())), 0.0)]
    stats = {
        size: bench.run(Rival(PLAIN), NoDrafts(), size, jobs[: plan.num_jobs(size)]).stats
        for size in plan.all_batch_sizes
    }
    return {size: each.total_s / max(1, each.num_rounds) for size, each in stats.items()}
