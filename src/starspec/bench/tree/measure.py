"""`starspec bench tree`: every shape on a few prompts, then the best of each kind and plain decoding in turns."""

from __future__ import annotations

from collections.abc import Sequence

from starspec.bench.pair.methods import Method, Work, key, num_turns, our_method, plain_method, run_in_turns
from starspec.bench.tree.grid import Kind, kind_of, name_of
from starspec.bench.tree.plan import TreePlan
from starspec.bench.tree.rows import at_the_edge, losing_regimes, ratios_of, tree_row
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.harness.datasets import Prompt, check_fit, spread
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
        return self.workbench.jobs(_share(prompt_files, num), Sampling(temperature=temperature), max_tokens)


def _share(prompt_files: Sequence[Sequence[Prompt]], num: int) -> list[Prompt]:
    """`num` prompts of each file."""
    return [prompt for prompts in prompt_files for prompt in spread(prompts, num)]


def measure_tree(
    models: ModelPair, prompt_files: Sequence[Sequence[Prompt]], plan: TreePlan, advance: Advance
) -> TreeReport:
    """Load the pair, time every shape, and measure the best ones.

    Args:
        prompt_files: used in equal shares.
    Raises: as check_fit; ModelError, VocabularyMismatch; ConfigError as `TreePlan.grid_for`.
    """
    advance("loading", None)
    grid = plan.grid_for(has_head=models.has_head)
    shapes = grid.shapes()
    for num in (plan.num_trial_prompts, plan.num_prompts):  # hours pass before the second
        check_fit(_share(prompt_files, num), models.target_config())
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
