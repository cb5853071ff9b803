"""`starspec bench tree`: every shape on a few prompts, then the best of each kind and plain decoding in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from starspec.bench.pair.methods import Method, Work, key, num_turns, our_method, plain_method, run_in_turns
from starspec.bench.tree.grid import CAUSAL_GRID, HEAD_GRID, Grid, Kind, kind_of, name_of
from starspec.bench.tree.rows import at_the_edge, losing_regimes, ratios_of, tree_row
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, spread
from starspec.harness.decode import Advance, Job
from starspec.harness.model_pair import ModelPair
from starspec.harness.provenance import collect_provenance
from starspec.harness.star import TargetTransportAround
from starspec.harness.step_times import StepSeconds, time_steps
from starspec.harness.tree_report import TreeReport, TreeRow, best_row
from starspec.harness.workbench import Sampling, Workbench
from starspec.local_star import NO_DEADLINE_S, LocalHub
from starspec.policy.length.fixed import FixedLength
from starspec.speculation.budget import NO_DRAFT, DraftBudget
from starspec.stats import TargetStats
from starspec.wire.codec import encode
from starspec.wire.messages import Features, HubToTarget, Proposal, TargetToHub, Verdict
from starspec.wire.transports.base import TargetTransport


class CountedTransport(TargetTransportAround):
    """A target's transport that adds up the bytes of verdicts, features and proposals.

    It leaves out what a prompt costs once: its `Open`, and the features of its positions, which are sent alone.
    """

    def __init__(self, transport: TargetTransport) -> None:
        super().__init__(transport)
        self.num_bytes = 0

    def send(self, messages: Sequence[TargetToHub]) -> None:
        told = {message.tag for message in messages if isinstance(message, Verdict)}
        for message in messages:
            if isinstance(message, Verdict | Features) and message.tag in told:
                self.num_bytes += len(encode(message))
        super().send(messages)

    def receive(self, timeout_s: float) -> list[HubToTarget]:
        messages = super().receive(timeout_s)
        self.num_bytes += sum(len(encode(message)) for message in messages if isinstance(message, Proposal))
        return messages


PLAIN = "plain"
WARM_UP_TOKENS = 6
NUM_TIMED_CHAINS = 8  # that time the drafter's draft steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlan:
    """How much to measure.

    Raises: ConfigError naming `--temperatures` unless each is a number from 0 on, and there is one.
    """

    grid: Grid | None = None  # None = the default of the kind of draft
    only: Mapping[str, Any] = field(default_factory=dict)  # sides of the grid that replace the default
    temperatures: tuple[float, ...] = (0.0, 1.0)
    num_trial_prompts: int = 2  # of each file, with every shape
    num_prompts: int = 8  # of each file, with the best
    max_tokens: int = 96
    num_repeats: int = 3

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0.0 <= each < inf for each in self.temperatures):
            raise ConfigError(f"--temperatures: numbers from 0 on, at least one, got {list(self.temperatures)}")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise ConfigError(f"--temperatures: each once, got {list(self.temperatures)}")


QUICK = TreePlan(
    grid=Grid(chains=(4,), depths=(5,), top_ks=(2,), nodes=(8, 10)),
    num_trial_prompts=1,
    num_prompts=1,
    max_tokens=32,
    num_repeats=1,
)


class _Bench:
    """The loaded models: one hub, with a link for each shape."""

    def __init__(self, models: ModelPair, shapes: Sequence[DraftBudget]) -> None:
        self.workbench = Workbench(models.target_config(), models.speculative())
        self.hub = LocalHub(
            models.target_config(), self.workbench.runner.info, models.speculative(), self.workbench.tokenizer
        )
        self.plain = plain_method(self.workbench)
        self.links = {shape: CountedTransport(self.hub.connect()) for shape in shapes}
        self.methods = {shape: self._method(shape) for shape in shapes}

    def _method(self, shape: DraftBudget) -> Method:
        drafts = RemoteDrafts(self.links[shape], FixedLength(shape), TargetStats(), deadline_s=NO_DEADLINE_S)
        return our_method(self.workbench, name_of(shape), drafts, None)

    def step_seconds(self) -> StepSeconds:
        loaded = self.hub.loaded
        layers = loaded.features.layers if loaded.features else ()
        return time_steps(self.workbench.runner, loaded.drafter, layers, num_chains=NUM_TIMED_CHAINS)

    def jobs(
        self, prompt_files: Sequence[Sequence[Prompt]], num: int, temperature: float, max_tokens: int
    ) -> list[Job]:
        prompts = [prompt for prompts in prompt_files for prompt in spread(prompts, num)]
        return self.workbench.jobs(prompts, Sampling(temperature=temperature), max_tokens)


def measure_tree(
    models: ModelPair, prompt_files: Sequence[Sequence[Prompt]], plan: TreePlan, advance: Advance
) -> TreeReport:
    """Load the pair, time every shape, and measure the best ones.

    Args:
        prompt_files: used in equal shares.
    Raises: ModelError, VocabularyMismatch.
    """
    advance("loading", None)
    grid = replace(plan.grid or (HEAD_GRID if models.has_head else CAUSAL_GRID), **plan.only)
    shapes = grid.shapes()
    bench = _Bench(models, shapes)
    steps = bench.step_seconds()
    rows: list[TreeRow] = []
    for temperature in plan.temperatures:
        trial = _run(
            bench,
            "trial",
            shapes,
            bench.jobs(prompt_files, plan.num_trial_prompts, temperature, plan.max_tokens),
            1,
            temperature,
            advance,
        )
        best = _best_shapes(trial, shapes)
        jobs = bench.jobs(prompt_files, plan.num_prompts, temperature, plan.max_tokens)
        rows += trial + _run(bench, "final", best, jobs, plan.num_repeats, temperature, advance)
    return TreeReport(
        provenance=collect_provenance(models.names),
        rows=rows,
        ratios=ratios_of(rows, steps),
        best={f"T={each:g}": best_row(rows, each).shape for each in plan.temperatures},
        losing=losing_regimes(rows),
        at_the_edge=at_the_edge(rows, shapes),
        left_out=grid.left_out(),
        draft_quantization=models.quantization,
        feature_layers=models.feature_layers,
        dtype=models.dtype,
        device=models.device,
        draft_step_ms=round(steps.draft_s * 1e3, 3),
        target_step_ms=round(steps.target_s[0] * 1e3, 3),
        outputs_identical=all(row.num_same_as_plain == row.num_answers for row in rows),
        numerics=bench.workbench.numerics_report,
    )


def _best_shapes(trial: Sequence[TreeRow], shapes: Sequence[DraftBudget]) -> list[DraftBudget]:
    """The fastest shape of each kind, in the order of `Kind`."""
    rate = {row.shape: row.tokens_per_s.median for row in trial}
    kinds = [[shape for shape in shapes if kind_of(shape) is kind] for kind in Kind]
    return [max(tried, key=lambda shape: rate[name_of(shape)]) for tried in kinds if tried]


def _run(
    bench: _Bench,
    stage: str,
    shapes: Sequence[DraftBudget],
    jobs: Sequence[Job],
    num_repeats: int,
    temperature: float,
    advance: Advance,
) -> list[TreeRow]:
    """Time plain decoding and some shapes in turns. Returns: a row for each, plain decoding first."""
    methods = [bench.plain, *(bench.methods[shape] for shape in shapes)]
    advance(f"{stage}, T = {temperature:g}", num_turns(methods, len(jobs), num_repeats))
    short = Job(jobs[0].name, jobs[0].prompt_token_ids[:WARM_UP_TOKENS], jobs[0].sampling, WARM_UP_TOKENS)
    for method in methods:
        method.answer([short])
    for shape in shapes:
        bench.links[shape].num_bytes = 0
    timed = run_in_turns(methods, Work(jobs, []), num_repeats, lambda what: advance(what, None))
    plain = timed[key(bench.plain)]
    rows = [tree_row(stage, temperature, PLAIN, NO_DRAFT, plain, plain, None)]
    for shape in shapes:
        num_bytes = bench.links[shape].num_bytes / num_repeats
        rows.append(tree_row(stage, temperature, name_of(shape), shape, timed[name_of(shape)], plain, num_bytes))
    return rows
