"""`starspec bench ...`: repeatable measurements, saved with their provenance."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, get_args

import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.bench_batch import batch
from starspec.cli.bench_star import async_pair, star, warm
from starspec.cli.bench_vllm import vllm
from starspec.cli.binder import bound, take
from starspec.cli.command import CommandLine
from starspec.cli.files import Datasets, JsonFile, PngFile, all_prompts, prompt_files
from starspec.cli.measuring import Quick, measuring, publish
from starspec.cli.options import MEASURE
from starspec.errors import ConfigError
from starspec.harness.model_pair import ModelPair

app = CommandLine(name="bench", no_args_is_help=True, help="Measure on this machine.")
app.command()(batch)
app.command()(star)
app.command("async")(async_pair)
app.command()(warm)
app.command()(vllm)

CertifiedPart = Literal[  # importing claims imports torch
    "exact", "sampled", "bits", "head-exact", "head-bits", "pair", "batch", "batch-pair"
]
GRID, SUITABLE = "Grid", "what suits the kind of draft"


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
    with measuring("bench pair") as bar:
        from starspec.bench.pair.measure import QUICK, PairPlan, blocks, measure_pair  # noqa: PLC0415 (torch)

        report = measure_pair(models, prompt_files(dataset), QUICK if quick else PairPlan(), bar.advance)
    mistakes = [] if report.outputs_identical else ["drafts or batches changed tokens of ours"]
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes)


@app.command()
@bound
def tree(
    models: Annotated[
        ModelPair,
        take("target", "draft", "quantization", "method", "feature_layers", "dtype", "device", "num_threads"),
    ],
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    png_file: PngFile = None,
    chains: Annotated[
        str | None, typer.Option(help="Lengths, as 3,4.", show_default=SUITABLE, rich_help_panel=GRID)
    ] = None,
    depths: Annotated[str | None, typer.Option(help="Of trees.", show_default=SUITABLE, rich_help_panel=GRID)] = None,
    top_ks: Annotated[str | None, typer.Option(help="Of trees.", show_default=SUITABLE, rich_help_panel=GRID)] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Of trees, without their roots.", show_default=SUITABLE, rich_help_panel=GRID)
    ] = None,
    p_mins: Annotated[
        str | None,
        typer.Option(
            help="Of chains and trees, as 0,0.3: drafting ends where the draft's probability is lower; 0 = never.",
            show_default=SUITABLE,
            rich_help_panel=GRID,
        ),
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(min=1, help="Of each file, for the best of each kind.", show_default="8", rich_help_panel=MEASURE),
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(help="0 = greedy, 1 = the model's own distribution.", show_default="0,1", rich_help_panel=MEASURE),
    ] = None,
) -> None:
    """Time chains and trees of different depth, width and size; name the best for greedy and for sampled decoding.

    Exits 1 if drafts changed a token.
    """
    with measuring("bench tree") as bar:
        from starspec.bench.tree.measure import QUICK, TreePlan, measure_tree  # noqa: PLC0415 (torch)
        from starspec.bench.tree.rows import blocks, draw  # noqa: PLC0415

        grid: dict[str, tuple[float, ...] | None] = {
            name: given.numbers(text, f"--{name.replace('_', '-')}")
            for name, text in {"chains": chains, "depths": depths, "top_ks": top_ks, "nodes": nodes}.items()
        }
        grid["p_mins"] = given.reals(p_mins, "--p-mins")
        plan = QUICK if quick else TreePlan()
        plan = replace(
            plan,
            only={name: each for name, each in grid.items() if each is not None},
            temperatures=given.reals(temperatures, "--temperatures") or plan.temperatures,
            num_prompts=num_prompts or plan.num_prompts,
        )
        report = measure_tree(models, prompt_files(dataset), plan, bar.advance)
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
    with measuring("bench faults", None) as bar:
        from starspec.bench.faults import (  # noqa: PLC0415 (torch)
            QUICK,
            FaultPlan,
            blocks,
            measure_faults,
            mistakes_of,
        )

        prompts = [prompt.text for prompt in all_prompts(dataset)]
        report = measure_faults(models, prompts, QUICK if quick else FaultPlan(), lambda what: bar.begin(what, None))
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))


@app.command()
def certify(
    model: Annotated[
        str, typer.Option(help=f"Model of the parts with one model: {opt.A_MODEL}.", rich_help_panel=opt.MODELS)
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="Target of the part with two models.", show_default="no such part", rich_help_panel=opt.MODELS
        ),
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="Its draft.", show_default="no such part", rich_help_panel=opt.MODELS)
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="An EAGLE head of --model.", show_default="no such parts", rich_help_panel=opt.MODELS),
    ] = None,
    part: Annotated[
        CertifiedPart | None, typer.Option(help="Test only this part; all parts take hours.", show_default="all")
    ] = None,
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
    device: opt.Device = opt.MODEL.device,
    num_threads: opt.NumThreads = None,
) -> None:
    """Certify that drafts and batches change no token, against transformers and plain decoding.

    Exits 1 if a claim does not hold.
    """
    with measuring("bench certify") as bar:
        from starspec.bench.certify import Shard, Subjects, blocks, count_turns  # noqa: PLC0415 (these import torch)
        from starspec.bench.certify import certify as run  # noqa: PLC0415
        from starspec.bench.claims import QUICK_PROMPTS  # noqa: PLC0415

        if (target is None) != (draft is None):
            raise ConfigError("the parts with two models need both --target and --draft")
        subjects = Subjects(
            model=model,
            head=head,
            pair=(target, draft) if target and draft else None,
            device=device,
            num_threads=num_threads,
            part_names=(part,) if part else get_args(CertifiedPart),
            shard=Shard(*given.shard(shard)) if shard else Shard(),
            is_small=quick,
        )
        if not subjects.parts():
            missing = "an EAGLE head: give --head" if "head" in str(part) else "two models: give --target and --draft"
            raise ConfigError(f"--part {part} is about {missing}")
        max_prompts = QUICK_PROMPTS if quick else None
        files = prompt_files(dataset)
        bar.begin("decoding", count_turns(subjects, max_prompts))
        found = run(subjects, files, max_prompts, bar.turn)
    publish(found, blocks(found), json_file, fails=not found.holds)
