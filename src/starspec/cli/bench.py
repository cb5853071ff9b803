"""`starspec bench ...`: repeatable measurements, saved with their provenance."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Literal, get_args

import typer

from starspec.bench.tree import plan as tree_plan
from starspec.cli import given
from starspec.cli.bench_batch import batch
from starspec.cli.bench_grammar import grammar
from starspec.cli.bench_length import length
from starspec.cli.bench_relaxed import relaxed
from starspec.cli.bench_shard import shard
from starspec.cli.bench_star import async_pair, star, warm
from starspec.cli.binder import bound, take
from starspec.cli.command import CommandLine
from starspec.cli.files import Datasets, JsonFile, PngFile, all_prompts, prompt_files
from starspec.cli.measuring import Quick, measuring, publish
from starspec.cli.options import over
from starspec.config import ModelConfig, Option
from starspec.config.model import MAX_NUM_THREADS
from starspec.config.option import A_MODEL, MEASURE, MODELS, P_MIN_RULE
from starspec.errors import ConfigError
from starspec.harness.model_pair import MODEL_OPTIONS, ModelPair
from starspec.models.loading.checks import check_models
from starspec.openmp import num_threads

app = CommandLine(name="bench", no_args_is_help=True, help="Measure on this machine.")
app.command()(batch)
app.command()(grammar)
app.command()(length)
app.command()(relaxed)
app.command()(shard)
app.command()(star)
app.command("async")(async_pair)
app.command()(warm)

CertifiedPart = Literal[  # importing claims imports torch
    "exact", "sampled", "bits", "head-exact", "head-bits", "pair", "batch", "batch-pair", "stages"
]
GRID, VLLM, SUITABLE = "Grid", "vLLM", "what suits the kind of draft"


@app.command()
@bound
def pair(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "method", "dtype", "num_threads")],
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Compare plain, speculative and batched decoding with transformers' generate and assisted generation.

    Decoding is greedy, and the methods take turns after each prompt. Exits 1 if drafts or batches changed a token.
    """
    prompts = prompt_files(dataset)
    models.find()
    with measuring("bench pair") as bar:
        from starspec.bench.pair.measure import QUICK, PairPlan, blocks, measure_pair  # noqa: PLC0415 (torch)

        report = measure_pair(models, prompts, QUICK if quick else PairPlan(), bar.advance)
    mistakes = [] if report.outputs_identical else ["drafts or batches changed tokens of ours"]
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """The sides of the grid that the command line gives; None = what suits the kind of draft."""

    chains: Annotated[
        tuple[int, ...] | None,
        Option("Lengths of chains to try, as 3,4.", GRID, least=1, shown=SUITABLE, form="numbers"),
    ] = None
    depths: Annotated[
        tuple[int, ...] | None, Option("Depths of trees to try.", GRID, least=1, shown=SUITABLE, form="numbers")
    ] = None
    top_ks: Annotated[
        tuple[int, ...] | None,
        Option("Children of a node in trees to try.", GRID, least=1, shown=SUITABLE, form="numbers"),
    ] = None
    nodes: Annotated[
        tuple[int, ...] | None,
        Option("Nodes of trees to try, without their roots.", GRID, least=1, shown=SUITABLE, form="numbers"),
    ] = None
    p_mins: Annotated[
        tuple[float, ...] | None,
        Option(
            f"Values of draft_p_min to try, for chains and trees, as 0,0.3: {P_MIN_RULE}.",
            GRID,
            shown=SUITABLE,
            form="reals",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions:
    """What of a `TreePlan` the command line says; None = not said."""

    num_prompts: Annotated[
        int | None, Option("Prompts of each file that the best of each kind answers.", MEASURE, least=1, shown="8")
    ] = None
    temperatures: Annotated[
        tuple[float, ...] | None,
        Option(
            "Temperatures to try: 0 = greedy, 1 = the model's own distribution.", MEASURE, shown="0,1", form="reals"
        ),
    ] = None


@app.command()
@bound
def tree(
    models: Annotated[
        ModelPair,
        take("target", "draft", "quantization", "method", "feature_layers", "dtype", "device", "num_threads"),
    ],
    grid: GridOptions,
    options: TreeOptions,
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    png_file: PngFile = None,
) -> None:
    """Time chains and trees of different depth, width and size; name the best for greedy and for sampled decoding.

    Exits 1 if drafts changed a token.
    """
    prompts = prompt_files(dataset)
    only = {name: sides for name, sides in asdict(grid).items() if sides is not None}
    plan = replace(over(tree_plan.QUICK if quick else tree_plan.TreePlan(), options), only=only)
    plan.grid_for(has_head=models.has_head)
    models.find()
    with measuring("bench tree") as bar:
        from starspec.bench.tree.measure import measure_tree  # noqa: PLC0415 (torch)
        from starspec.bench.tree.rows import blocks, draw  # noqa: PLC0415

        report = measure_tree(models, prompts, plan, bar.advance)
    publish(
        report,
        blocks(report),
        json_file,
        quick=quick,
        draw=partial(draw, report.rows, png_file) if png_file else None,
        mistakes=[] if report.outputs_identical else ["drafts changed tokens"],
    )


@app.command()
def wire(quick: Quick = False, json_file: JsonFile = None) -> None:
    """Measure what hub, messages and sockets cost beyond drafting: real processes, synthetic accelerators."""
    with measuring("bench wire", None) as bar:
        from starspec.bench.wire.measure import QUICK, WirePlan, blocks, measure_wire  # noqa: PLC0415 (torch)

        report = measure_wire(QUICK if quick else WirePlan(), lambda what: bar.begin(what, None))
    publish(report, blocks(report), json_file, quick=quick, num_repeats=QUICK.num_repeats)


@app.command()
@bound
def faults(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "method", "dtype")],
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Measure what clients notice when the hub is killed, stopped and restarted: two targets, eight streams.

    Exits 1 if a token changed.
    """
    prompts = [prompt.text for prompt in all_prompts(dataset)]
    models.find()
    with measuring("bench faults", None) as bar:
        from starspec.bench.faults import (  # noqa: PLC0415 (torch)
            QUICK,
            FaultPlan,
            blocks,
            measure_faults,
            mistakes_of,
        )

        report = measure_faults(models, prompts, QUICK if quick else FaultPlan(), lambda what: bar.begin(what, None))
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))


@app.command()
@bound
def watch(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "method", "dtype")],
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Measure whether 16 open dashboards slow generation: a real star, with them and without, in turns.

    Exits 1 if they add more than 1% to the star's processor time, as the median over pairs.
    """
    prompts = [prompt.text for prompt in all_prompts(dataset)]
    models.find()
    with measuring("bench watch", None) as bar:
        from starspec.bench.watch import QUICK, WatchPlan, blocks, measure_watch, mistakes_of  # noqa: PLC0415 (torch)

        report = measure_watch(models, prompts, QUICK if quick else WatchPlan(), lambda what: bar.begin(what, None))
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The servers that are compared."""

    vllm_python: Annotated[
        str,
        Option(
            "Python of an environment with vLLM and starspec; `make test-vllm` creates one in .venv-vllm.",
            VLLM,
            envvar="VLLM_PYTHON",
        ),
    ] = ".venv-vllm/bin/python"
    vllm_args: Annotated[
        tuple[str, ...],
        Option("More arguments of each server's command line.", VLLM, form="arguments"),
    ] = ("--enforce-eager",)
    num_draft_tokens: Annotated[
        int, Option("Largest number of draft tokens of the hub.", MEASURE, least=1, most=16)
    ] = 4
    num_threads: Annotated[
        int | None,
        Option(
            "CPU threads of each server, and of the hub.",
            MODELS,
            least=1,
            most=MAX_NUM_THREADS,
            shown=MODEL_OPTIONS["num_threads"].shown,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlanOptions:
    """What of a `VllmPlan` the command line says; None = not said."""

    num_prompts: Annotated[int | None, Option("Prompts of each file to answer.", MEASURE, least=1, shown="4")] = None
    batch_sizes: Annotated[
        tuple[int, ...] | None,
        Option("Prompts that are answered at once.", MEASURE, least=1, shown="1,4", form="numbers"),
    ] = None
    lengths: Annotated[
        tuple[int, ...] | None,
        Option(
            "Draft lengths of vLLM's own draft model, as 3,5; each needs a server.",
            MEASURE,
            ("--own-lengths",),
            least=1,
            shown="3,5",
            form="numbers",
        ),
    ] = None


@app.command()
@bound
def vllm(
    pair: Annotated[ModelPair, take("target", "draft", "quantization", "dtype")],
    servers: VllmOptions,
    options: VllmPlanOptions,
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Compare vLLM with a hub's drafts, with vLLM's own draft model, and without drafts: real servers, greedy, in
    turns.

    It also measures the cost of a hub that does not answer. Exits 1 if an answer differs without a near-tie.
    """
    prompts = prompt_files(dataset)
    if shutil.which(servers.vllm_python) is None:
        raise ConfigError(f"--vllm-python: there is no program '{servers.vllm_python}'; `make test-vllm` makes one")
    pair.find()
    with measuring("bench vllm") as bar:
        from starspec.bench.vllm.measure import QUICK, VllmPlan, blocks, measure_vllm, mistakes_of  # noqa: PLC0415
        from starspec.bench.vllm.methods import VllmModels  # noqa: PLC0415
        from starspec.harness.report import write_report  # noqa: PLC0415 (torch)

        models = VllmModels(
            python=servers.vllm_python,
            target=pair.target,
            draft=pair.draft,
            quantization=pair.quantization,
            dtype=pair.dtype,
            num_threads=servers.num_threads or num_threads(os.environ),
            num_draft_tokens=servers.num_draft_tokens,
            vllm_options=servers.vllm_args,
        )
        plan = over(QUICK if quick else VllmPlan(), options)
        for report in measure_vllm(models, prompts, plan, bar.advance):
            if json_file is not None:
                write_report(report, json_file)
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyOptions:
    """Models and parts of a certificate."""

    model: Annotated[str, Option(f"Model of the parts with one model: {A_MODEL}.", MODELS)]
    target: Annotated[
        str | None, Option("Target model of the parts with two models.", MODELS, shown="no such part")
    ] = None
    draft: Annotated[str | None, Option("Draft model of the parts with two models.", MODELS, shown="no such part")] = (
        None
    )
    head: Annotated[str | None, Option("EAGLE head that drafts for --model.", MODELS, shown="no such parts")] = None
    part: Annotated[
        CertifiedPart | None, Option("Test only this part; all parts take hours.", MEASURE, shown="all")
    ] = None

    def __post_init__(self) -> None:
        if (self.target is None) != (self.draft is None):
            raise ConfigError("the parts with two models need both --target and --draft")
        if self.part in ("head-exact", "head-bits") and self.head is None:
            raise ConfigError(f"--part {self.part} is about an EAGLE head: give --head")
        if self.part in ("pair", "batch-pair") and self.target is None:
            raise ConfigError(f"--part {self.part} is about two models: give --target and --draft")


@app.command()
@bound
def certify(
    options: CertifyOptions,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Test only every N-th prompt, from the I-th on. N runs, or machines, test all prompts.",
            show_default="all prompts",
        ),
    ] = None,
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    *,
    runs: Annotated[ModelConfig, take("device", "num_threads", model="")],
) -> None:
    """Certify that drafts and batches change no token, against transformers and plain decoding.

    Exits 1 if a claim does not hold.
    """
    files = prompt_files(dataset)
    part_of = given.shard(shard) if shard else (1, 1)
    for target, draft in ((options.model, options.head), (options.target, options.draft)):
        if target is not None:
            check_models(replace(runs, model=target), None if draft is None else replace(runs, model=draft))
    with measuring("bench certify") as bar:
        from starspec.bench.certify import Shard, Subjects, blocks, count_turns  # noqa: PLC0415 (these import torch)
        from starspec.bench.certify import certify as run  # noqa: PLC0415
        from starspec.bench.claims import QUICK_PROMPTS  # noqa: PLC0415

        subjects = Subjects(
            model=options.model,
            head=options.head,
            pair=(options.target, options.draft) if options.target and options.draft else None,
            device=runs.device,
            num_threads=runs.num_threads,
            part_names=(options.part,) if options.part else get_args(CertifiedPart),
            shard=Shard(*part_of),
            is_small=quick,
        )
        max_prompts = QUICK_PROMPTS if quick else None
        bar.begin("decoding", count_turns(subjects, max_prompts))
        found = run(subjects, files, max_prompts, bar.turn)
    publish(found, blocks(found), json_file, fails=not found.holds)
