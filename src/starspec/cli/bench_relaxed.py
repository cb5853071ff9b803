"""`starspec bench relaxed`: speed and accuracy of relaxed verification."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from starspec.bench.relaxed.plan import RelaxedPlan
from starspec.bench.relaxed.problems import by_task, check_may_run, read_problems
from starspec.cli.binder import bound, take
from starspec.cli.files import JsonFile, PngFile, check_different, check_enough
from starspec.cli.measuring import Quick, measuring, publish
from starspec.config import TargetConfig, read_calibration
from starspec.config.option import MEASURE
from starspec.harness.datasets import spread
from starspec.harness.model_pair import ModelPair
from starspec.models.loading.locate import announced_name
from starspec.models.resolve import draft_name, resolve_draft

Problems = Annotated[
    list[Path] | None,
    typer.Option(
        "--dataset",
        help='Problems of HumanEval or GSM8K, as JSON lines with "turns" and "reference"; may be repeated.',
        show_default="none; there must be one",
        rich_help_panel=MEASURE,
    ),
]
RunCode = Annotated[
    bool,
    typer.Option(
        "--run-generated-code",
        help="Let HumanEval be graded: programs that the model writes run on this machine, with limits of time and "
        "memory but without isolation.",
        rich_help_panel=MEASURE,
    ),
]


@bound
def relaxed(
    models: Annotated[
        ModelPair, take("target", "draft", "quantization", "method", "dtype", "device", "numerics", "num_threads")
    ],
    plan: RelaxedPlan,
    target: Annotated[TargetConfig, take("relaxed_thresholds", allow_relaxed=True)],
    dataset: Problems = None,
    run_generated_code: RunCode = False,
    quick: Quick = False,
    json_file: JsonFile = None,
    png_file: PngFile = None,
) -> None:
    """Measure relaxed verification over tau: speed, acceptance length, and accuracy in HumanEval and GSM8K.

    Each figure has its 95% interval. Exits 1 if tau = 0, which is strict, changed a token of plain decoding. Ctrl-C
    stops measuring; the results so far are shown and saved.
    """
    check_different(dataset)
    problems = read_problems(dataset or [], plan.num_asked)
    check_enough(plan.num_problems, by_task(problems), "--num-problems")
    if quick:
        plan = plan.in_small()
        problems = [each for some in by_task(problems) for each in spread(some, plan.num_asked)]
    check_may_run(problems, run_generated_code)
    calibration = read_calibration(target.relaxed_thresholds)
    models.find()
    if why := calibration.why_of_others(
        target=announced_name(models.target), draft=draft_name(resolve_draft(models.speculative()))
    ):
        print(f"bench relaxed: {why}", file=sys.stderr)
    with measuring("bench relaxed") as bar:
        from starspec.bench.relaxed.measure import measure_relaxed  # noqa: PLC0415 (torch)
        from starspec.bench.relaxed.rows import blocks, draw  # noqa: PLC0415

        report = measure_relaxed(
            models, problems, plan, calibration.thresholds, bar.advance, may_run_code=run_generated_code
        )
    publish(
        report,
        blocks(report),
        json_file,
        quick=quick,
        draw=partial(draw, report.rows, png_file) if png_file else None,
        mistakes=report.mistakes,
        is_whole=report.is_whole,
    )
