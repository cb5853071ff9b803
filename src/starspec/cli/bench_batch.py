"""`starspec bench batch`: the ways of batching speculation."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.files import Datasets, JsonFile, PngFile, all_prompts
from starspec.cli.measuring import measuring, publish
from starspec.cli.options import MEASURE
from starspec.errors import ConfigError


def batch(
    target: opt.TargetModel,
    draft: opt.GivenDraft,
    draft_quantization: opt.GivenQuantization = "int4",
    spec_method: opt.GivenMethod = "draft_model",
    methods: Annotated[
        str, typer.Option(help="Any of ragged, eqspec, exspec, rollback, plain, ragged-fast and plain-fast.")
    ] = "ragged,eqspec,exspec,rollback,plain",
    batch_sizes: Annotated[str, typer.Option(help="Sequences of a round.")] = "1,2,4,8,16",
    window: opt.Window = None,
    max_passed_over: opt.MaxPassedOver = None,
    fixed_batches: Annotated[
        bool,
        typer.Option(
            "--fixed-batches", help="Nobody joins a batch until all of it have ended, as in the paper; not in exspec's."
        ),
    ] = False,
    dataset: Datasets = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="Prompts used.", rich_help_panel=MEASURE)] = 32,
    context: Annotated[
        int | None,
        typer.Option(
            min=8, help="Grow prompts to about so many tokens.", show_default="as they are", rich_help_panel=MEASURE
        ),
    ] = None,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Leave out longer prompts.", show_default="448 without --context", rich_help_panel=MEASURE
        ),
    ] = None,
    same_length: Annotated[
        bool,
        typer.Option(
            "--same-length", help="Cut prompts to the median length; no shorter ones.", rich_help_panel=MEASURE
        ),
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.", rich_help_panel=MEASURE)] = 64,
    num_draft_tokens: Annotated[int, typer.Option(min=1, help="Draft tokens of a round.", rich_help_panel=MEASURE)] = 5,
    draft_p_min: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Draft no further where the draft gives what it would go on from less than this; 0 = never.",
            rich_help_panel=MEASURE,
        ),
    ] = 0.0,
    disable_by_batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rounds of more sequences draft nothing.",
            show_default="all draft",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.", rich_help_panel=MEASURE)] = 0.0,
    repeats: Annotated[int, typer.Option(min=1, rich_help_panel=MEASURE)] = 3,
    load: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.99,
            help="Also let requests arrive at random, at this share of what the slowest method that drafts answers; "
            "0 = do not.",
            rich_help_panel=MEASURE,
        ),
    ] = 0.0,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="The same work in small: a few minutes. Of the batch sizes 1 and 4, few prompts, short answers, once.",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    json_file: JsonFile = None,
    png_file: PngFile = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    numerics: opt.Numerics = opt.MODEL.numerics,
    num_threads: Annotated[int, typer.Option(min=1, help="CPU threads of a forward.", rich_help_panel=opt.MODELS)] = 2,
) -> None:
    """Ragged, realigned, grouped, rolled-back and plain batches: how fast, where the time goes, and whether right.

    Exits 1 if a token differs where these settings promise that none does, or where no two are nearly tied. Ctrl-C ends
    measuring, and what was measured is told and saved.
    """
    with measuring("bench batch") as bar:
        from starspec.bench.batch.measure import measure_batch  # noqa: PLC0415 (torch)
        from starspec.bench.batch.plan import MAX_PROMPT_TOKENS, BatchPlan  # noqa: PLC0415
        from starspec.bench.batch.report import blocks, draw  # noqa: PLC0415
        from starspec.harness.model_pair import ModelPair  # noqa: PLC0415

        names = tuple(dict.fromkeys(name.strip() for name in methods.split(",")))
        given.check_exspec(names, "--methods", window, max_passed_over)
        if context is not None and max_prompt_tokens is not None:
            raise ConfigError("--context takes prompts of any length: give no --max-prompt-tokens with it")
        plan = BatchPlan(
            methods=names,
            batch_sizes=tuple(dict.fromkeys(given.numbers(batch_sizes, "--batch-sizes") or ())),
            exspec=given.batching_config("exspec", window, max_passed_over),
            admission="fixed" if fixed_batches else "continuous",
            num_prompts=num_prompts,
            max_prompt_tokens=max_prompt_tokens or MAX_PROMPT_TOKENS,
            context=context,
            is_one_length=same_length,
            max_tokens=max_tokens,
            temperature=temperature,
            num_draft_tokens=num_draft_tokens,
            draft_p_min=draft_p_min,
            disable_by_batch_size=disable_by_batch_size,
            num_repeats=repeats,
            load=load,
        )
        models = ModelPair(
            target=target,
            draft=draft,
            quantization=draft_quantization,
            method=spec_method,
            dtype=dtype,
            numerics=numerics,
            num_threads=num_threads,
        )
        report = measure_batch(models, all_prompts(dataset), plan.in_small() if quick else plan, bar.advance)
    hint = "; --same-length leaves out those below the median length" if same_length else ""
    publish(
        report,
        blocks(report, hint),
        json_file,
        quick=quick,
        draw=partial(draw, report.rows, png_file) if png_file else None,
        mistakes=report.mistakes,
    )
    if not report.is_whole:
        raise typer.Abort
