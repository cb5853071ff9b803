"""`starspec bench batch`: the ways of batching speculation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from starspec.bench.batch.plan import MAX_PROMPT_TOKENS, BatchPlan
from starspec.cli import given
from starspec.cli.binder import bound, take
from starspec.cli.files import Datasets, JsonFile, PngFile, all_prompts, check_enough
from starspec.cli.measuring import measuring, publish
from starspec.cli.options import BatchingOptions
from starspec.config.option import MEASURE
from starspec.errors import ConfigError
from starspec.harness.model_pair import ModelPair

FixedBatches = Annotated[
    bool,
    typer.Option(
        "--fixed-batches",
        help="A batch takes no new sequences until all its sequences have ended, as in the paper. Not for exspec.",
    ),
]


@bound
def batch(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "method", "dtype", "numerics", "num_threads")],
    plan: BatchPlan,
    exspec: Annotated[BatchingOptions, take("window", "max_passed_over", "min_group")],
    fixed_batches: FixedBatches = False,
    dataset: Datasets = None,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Leave out longer prompts.", show_default="448 without --context", rich_help_panel=MEASURE
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="The same work in small: a few minutes, batch sizes 1 and 4, few prompts, short answers, one repeat.",
            rich_help_panel=MEASURE,
        ),
    ] = False,
    json_file: JsonFile = None,
    png_file: PngFile = None,
) -> None:
    """Compare ragged, realigned, grouped, rolled-back and plain batches: speed, where the time goes, and correctness.

    Exits 1 if a token differs although these settings promise that none does, or without a near-tie. Ctrl-C stops
    measuring; the results so far are shown and saved.
    """
    given.check_exspec(plan.methods, "--methods", exspec.window, exspec.max_passed_over, exspec.min_group)
    if plan.context is not None and max_prompt_tokens is not None:
        raise ConfigError("--context takes prompts of any length: give no --max-prompt-tokens with it")
    plan = replace(
        plan,
        exspec=replace(exspec, batching="exspec").to_config(),
        admission="fixed" if fixed_batches else "continuous",
        max_prompt_tokens=max_prompt_tokens or MAX_PROMPT_TOKENS,
    )
    prompts = all_prompts(dataset)
    if not plan.is_multi_turn:  # which asks each prompt several times
        check_enough(plan.num_prompts, [prompts])
    plan = plan.in_small() if quick else plan
    plan.of_all_sizes()  # refuses an unknown method, and a window that is too small
    models.find()
    with measuring("bench batch") as bar:
        from starspec.bench.batch.measure import measure_batch  # noqa: PLC0415 (torch)
        from starspec.bench.batch.report import blocks, draw  # noqa: PLC0415

        report = measure_batch(models, prompts, plan, bar.advance)
    hint = "; --same-length leaves out those below the median length" if plan.is_one_length else ""
    publish(
        report,
        blocks(report, hint),
        json_file,
        quick=quick,
        draw=partial(draw, report.rows, png_file) if png_file else None,
        mistakes=report.mistakes,
        is_whole=report.is_whole,
    )
