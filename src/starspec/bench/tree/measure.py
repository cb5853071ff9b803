"""Every shape on a few prompts, then the best chain and the best tree against plain decoding, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starspec.bench.datasets import Prompt, spread
from starspec.bench.decode import Job
from starspec.bench.pair.methods import Method, Timed, Work, key, num_turns, our_method, plain_method, run_in_turns
from starspec.bench.provenance import Provenance, collect_provenance
from starspec.bench.report import Spread
from starspec.bench.tree.shapes import Grid, name_of
from starspec.bench.tree.traffic import CountedTransport
from starspec.bench.workbench import Sampling, Workbench
from starspec.config import ModelConfig, SpeculativeConfig
from starspec.length.policy import FixedLength
from starspec.local_star import NO_DEADLINE_S, LocalHub
from starspec.speculation.budget import DraftBudget
from starspec.speculation.stats import TargetStats
from starspec.target.remote_drafts import RemoteDrafts

PLAIN = "plain"
WARM_UP_TOKENS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlan:
    """How much to measure."""

    grid: Grid = field(default_factory=Grid)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    num_trial_prompts: int = 2  # of each file, with every shape
    num_prompts: int = 8  # of each file, with the best
    max_tokens: int = 96
    num_repeats: int = 3


QUICK = TreePlan(
    grid=Grid(chains=(3, 4), depths=(3, 4), top_ks=(3,), nodes=(8, 12)),
    num_trial_prompts=1,
    num_prompts=1,
    max_tokens=32,
    num_repeats=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeModels:
    """What is measured."""

    target: str
    draft: str
    quantization: str
    dtype: str
    num_threads: int
    max_model_len: int = 1024

    def target_config(self) -> ModelConfig:
        return ModelConfig(
            model=self.target,
            dtype=self.dtype,  # type: ignore[arg-type]
            num_rows=1,
            max_model_len=self.max_model_len,
            num_threads=self.num_threads,
        )

    def speculative(self) -> SpeculativeConfig:
        return SpeculativeConfig(
            model=self.draft,
            quantization=self.quantization,  # type: ignore[arg-type]
            max_model_len=self.max_model_len,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """One shape at one temperature."""

    stage: str  # "trial": every shape on a few prompts; "final": the best ones in turns with plain decoding
    temperature: float
    shape: str
    num_steps: int
    eagle_topk: int
    num_nodes: int  # without the root; SGLang's num_draft_tokens is one more
    tokens_per_s: Spread
    vs_plain: float  # of the same stage
    acceptance_length: float | None
    block_efficiency: float | None
    bytes_per_accepted_token: float | None  # verdicts and proposals, as they are encoded for the wire
    num_same_as_plain: int
    num_answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReport:
    """What `starspec bench tree` saves."""

    provenance: Provenance
    rows: list[TreeRow]
    ratios: dict[str, float]
    best: dict[str, str]  # temperature -> shape, plain decoding where nothing pays
    at_the_edge: list[str]  # best shapes beyond which nothing was tried: a larger grid might find better ones
    outputs_identical: bool
    numerics: str


Advance = Callable[[str, int | None], None]
"""(what is about to run, turns of this stage if it begins)"""


class _Bench:
    """Everything loaded: one hub, and a link to it for each shape."""

    def __init__(self, models: TreeModels, shapes: Sequence[DraftBudget]) -> None:
        self.workbench = Workbench(models.target_config())
        hub = LocalHub(models.target_config(), models.speculative(), self.workbench.tokenizer)
        self.plain = plain_method(self.workbench)
        self.links = {shape: CountedTransport(hub.connect()) for shape in shapes}
        self.methods = {shape: self._method(shape) for shape in shapes}

    def _method(self, shape: DraftBudget) -> Method:
        drafts = RemoteDrafts(self.links[shape], FixedLength(shape), TargetStats(), deadline_s=NO_DEADLINE_S)
        return our_method(self.workbench, name_of(shape), drafts, None)

    def jobs(
        self, prompt_files: Sequence[Sequence[Prompt]], num: int, temperature: float, max_tokens: int
    ) -> list[Job]:
        prompts = [prompt for prompts in prompt_files for prompt in spread(prompts, num)]
        return self.workbench.jobs(prompts, Sampling(temperature=temperature), max_tokens)


def measure_tree(
    models: TreeModels, prompt_files: Sequence[Sequence[Prompt]], plan: TreePlan, advance: Advance
) -> TreeReport:
    """Load the pair, try every shape, and measure the best.

    Args:
        prompt_files: used in equal shares.
    Raises: ModelError, VocabularyMismatch.
    """
    advance("loading", None)
    shapes = plan.grid.shapes()
    bench = _Bench(models, shapes)
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
        best = [_best(trial, shapes, is_chain) for is_chain in (True, False)]
        jobs = bench.jobs(prompt_files, plan.num_prompts, temperature, plan.max_tokens)
        rows += trial + _run(bench, "final", best, jobs, plan.num_repeats, temperature, advance)
    return TreeReport(
        provenance=collect_provenance({"target": models.target, "draft": models.draft}),
        rows=rows,
        ratios=ratios_of(rows),
        best={f"T={each:g}": best_shape(rows, each) for each in plan.temperatures},
        at_the_edge=at_the_edge(rows, shapes),
        outputs_identical=all(row.num_same_as_plain == row.num_answers for row in rows),
        numerics=bench.workbench.numerics_report,
    )


def ratios_of(rows: Sequence[TreeRow]) -> dict[str, float]:
    """Medians against medians, of the final stage."""
    ratios: dict[str, float] = {}
    for temperature in sorted({row.temperature for row in rows}):
        final = [row for row in rows if row.stage == "final" and row.temperature == temperature]
        chain, tree = (
            max((row for row in final if row.num_nodes and (row.eagle_topk == 1) == is_chain), key=_rate)
            for is_chain in (True, False)
        )
        ratios[f"best_tree_vs_best_chain_t{temperature:g}"] = round(_rate(tree) / _rate(chain), 3)
        ratios[f"speculative_vs_plain_t{temperature:g}"] = max(tree.vs_plain, chain.vs_plain)
    return ratios


def best_shape(rows: Sequence[TreeRow], temperature: float) -> str:
    """The fastest of the final stage, plain decoding among them."""
    return max((row for row in rows if row.stage == "final" and row.temperature == temperature), key=_rate).shape


def at_the_edge(rows: Sequence[TreeRow], shapes: Sequence[DraftBudget]) -> list[str]:
    """Best shapes of the final stage that are the deepest, widest or largest of their kind."""
    found = []
    for row in rows:
        if row.stage == "final" and row.num_nodes:
            kind = [shape for shape in shapes if shape.is_chain == (row.eagle_topk == 1)]
            deepest = max(shape.num_steps for shape in kind)
            largest = max(shape.num_draft_tokens for shape in kind)
            if row.num_steps == deepest or row.num_nodes == largest:
                found.append(f"{row.shape} at T={row.temperature:g}")
    return found


def _rate(row: TreeRow) -> float:
    return row.tokens_per_s.median


def _best(trial: Sequence[TreeRow], shapes: Sequence[DraftBudget], is_chain: bool) -> DraftBudget:
    rate = {row.shape: _rate(row) for row in trial}
    return max((shape for shape in shapes if shape.is_chain == is_chain), key=lambda shape: rate[name_of(shape)])


def _run(
    bench: _Bench,
    stage: str,
    shapes: Sequence[DraftBudget],
    jobs: Sequence[Job],
    num_repeats: int,
    temperature: float,
    advance: Advance,
) -> list[TreeRow]:
    """Time plain decoding and some shapes, in turns. Returns: a row each, plain decoding first."""
    methods = [bench.plain, *(bench.methods[shape] for shape in shapes)]
    advance(f"{stage}, T = {temperature:g}", num_turns(methods, len(jobs), num_repeats))
    short = Job(jobs[0].name, jobs[0].prompt_token_ids[:WARM_UP_TOKENS], jobs[0].law, WARM_UP_TOKENS)
    for method in methods:
        method.answer([short])
    for shape in shapes:
        bench.links[shape].num_bytes = 0
    timed = run_in_turns(methods, Work(jobs, []), num_repeats, lambda what: advance(what, None))
    plain = timed[key(bench.plain)]
    rows = [_row(stage, temperature, PLAIN, DraftBudget.chain(0), plain, plain, None)]
    for shape in shapes:
        num_bytes = bench.links[shape].num_bytes / num_repeats
        rows.append(_row(stage, temperature, name_of(shape), shape, timed[name_of(shape)], plain, num_bytes))
    return rows


def _row(
    stage: str,
    temperature: float,
    name: str,
    shape: DraftBudget,
    timed: Timed,
    plain: Timed,
    num_bytes: float | None,
) -> TreeRow:
    acceptance = timed.acceptance if num_bytes is not None else None
    rate = Spread.of([round(each, 3) for each in timed.tokens_per_s])
    plain_rate = Spread.of(plain.tokens_per_s).median
    return TreeRow(
        stage=stage,
        temperature=temperature,
        shape=name,
        num_steps=shape.num_steps,
        eagle_topk=shape.top_k,
        num_nodes=shape.num_draft_tokens,
        tokens_per_s=rate,
        vs_plain=round(rate.median / plain_rate, 3),
        acceptance_length=round(acceptance.acceptance_length, 3) if acceptance else None,
        block_efficiency=round(acceptance.block_efficiency, 3) if acceptance else None,
        bytes_per_accepted_token=_per_token(num_bytes, acceptance.num_accepted_tokens) if acceptance else None,
        num_same_as_plain=sum(
            answer.token_ids == plain.answers[name].token_ids for name, answer in timed.answers.items()
        ),
        num_answers=len(timed.answers),
    )


def _per_token(num_bytes: float | None, num_accepted: int) -> float | None:
    return round(num_bytes / num_accepted, 1) if num_bytes is not None and num_accepted else None
