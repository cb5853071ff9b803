"""`starspec bench star`, `async` and `warm`: how a hub's idle time is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.files import Datasets, JsonFile, all_prompts, check_folder
from starspec.cli.measuring import Quick, measuring, publish
from starspec.cli.options import MEASURE
from starspec.config import ModelConfig
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt

Traces = Annotated[
    Path | None,
    typer.Option(
        callback=check_folder,
        help="Also write traces of a few turns, at full speed, for Chrome or Perfetto, and a picture of them to this "
        "folder.",
        show_default="no traces",
        rich_help_panel=MEASURE,
    ),
]


SlowMotion = Annotated[
    float,
    typer.Option(
        min=1.0,
        max=16.0,
        help="Modelled forwards take so many times as long, and so does the run. Rates and times are in modelled time, "
        "so the overhead of a slow or busy machine counts less.",
        rich_help_panel=MEASURE,
    ),
]


def star(
    target: opt.MaybeTarget = None,
    draft: opt.MaybeDraft = None,
    draft_quantization: opt.GivenQuantization = "int4",
    dtype: opt.Dtype = opt.MODEL.dtype,
    num_speculative_tokens: opt.SpecTokens = None,
    dataset: Datasets = None,
    num_targets: Annotated[
        str | None, typer.Option(help="Of real models, as 1,2,3.", show_default="1,2,3", rich_help_panel=MEASURE)
    ] = None,
    slow_motion: SlowMotion = 1.0,
    quick: Quick = False,
    json_file: JsonFile = None,
    traces: Traces = None,
) -> None:
    """Measure one hub with more and more targets at StarSD's operating point, with and without batches and run-ahead.

    It uses real processes and sockets, and synthetic accelerators; or real models with --target and --draft, beside the
    synthetic star that takes their step times.
    """
    if target is not None and draft is not None:
        if (slow_motion, traces) != (1.0, None):
            raise ConfigError(
                "--slow-motion and --traces are of synthetic accelerators: leave --target and --draft out"
            )
        counts = given.numbers(num_targets, "--num-targets")
        models = (
            ModelConfig(model=target, dtype=dtype, num_rows=1, num_threads=1),
            ModelConfig(model=draft, dtype=dtype, quantization=draft_quantization, num_rows=1, num_threads=1),
        )
        _real_star(models, all_prompts(dataset), num_speculative_tokens, counts, quick, json_file)
        return
    if (target, draft, num_speculative_tokens, num_targets) != (None, None, None, None):
        raise ConfigError("bench star with real models needs both --target and --draft")
    with measuring("bench star", None) as bar:
        from starspec.bench.star.measure import (  # noqa: PLC0415 (torch)
            QUICK,
            TRACED,
            StarPlan,
            measure_star,
            trace_star,
        )
        from starspec.bench.star.tables import blocks  # noqa: PLC0415

        plan = replace(QUICK if quick else StarPlan(), slow_motion=slow_motion)
        bar.begin("serving", plan.num_turns + (len(TRACED) if traces else 0))
        if traces is not None:
            trace_star(traces, bar.turn)
        report = measure_star(plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick)


def _real_star(
    models: tuple[ModelConfig, ModelConfig],
    prompts: Sequence[Prompt],
    num_draft_tokens: int | None,
    num_targets: tuple[int, ...] | None,
    quick: bool,
    json_file: Path | None,
) -> None:
    """Args: models: target and draft."""
    with measuring("bench star") as bar:
        from starspec.bench.star.real_star import (  # noqa: PLC0415 (torch)
            QUICK,
            RealStarPlan,
            blocks,
            measure_real_star,
        )

        plan = QUICK if quick else RealStarPlan()
        plan = replace(
            plan,
            num_draft_tokens=num_draft_tokens or plan.num_draft_tokens,
            num_targets=num_targets or plan.num_targets,
        )
        bar.begin("serving", plan.num_turns)
        report = measure_real_star(*models, prompts, plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick)


def async_pair(
    target: opt.MaybeTarget = None,
    draft: opt.MaybeDraft = None,
    draft_quantization: opt.GivenQuantization = "int4",
    dtype: opt.Dtype = opt.MODEL.dtype,
    dataset: Datasets = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Of all files.", show_default="8", rich_help_panel=MEASURE)
    ] = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    traces: Traces = None,
) -> None:
    """Compare drafting that waits for verdicts with drafting that does not: one hub and one target, one core each.

    It uses synthetic accelerators with AMUSD's step times, or real models with --target and --draft.
    """
    if target is None or draft is None:
        if (target, draft, traces, num_prompts) != (None, None, None, None):
            raise ConfigError("bench async with real models, their prompts and --traces need both --target and --draft")
        _async_synthetic(quick, json_file)
        return
    with measuring("bench async") as bar:
        from starspec.bench.star.real_pair import QUICK, RealPairPlan, blocks, measure_real_pair  # noqa: PLC0415

        plan = QUICK if quick else RealPairPlan()
        plan = replace(plan, num_prompts=num_prompts or plan.num_prompts)
        target_model = ModelConfig(model=target, dtype=dtype, num_rows=1, num_threads=1)
        draft_model = ModelConfig(model=draft, dtype=dtype, quantization=draft_quantization, num_rows=1, num_threads=1)
        prompts = all_prompts(dataset)
        bar.begin("decoding", plan.num_turns + (3 if traces else 0))
        report = measure_real_pair(target_model, draft_model, prompts, plan, bar.turn, traces)
    publish(report, blocks(report), json_file, quick=quick)


def _async_synthetic(quick: bool, json_file: Path | None) -> None:
    with measuring("bench async", None) as bar:
        from starspec.bench.star.async_pair import QUICK, AsyncPlan, blocks, measure_async  # noqa: PLC0415 (torch)

        plan = QUICK if quick else AsyncPlan()
        bar.begin("serving", plan.num_turns)
        report = measure_async(plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick)


def warm(
    draft: opt.GivenDraft,
    draft_quantization: opt.GivenQuantization = "int4",
    dtype: opt.Dtype = opt.MODEL.dtype,
    num_threads: opt.NumThreads = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Measure whether a draft is slower after some idle milliseconds, as StarSD found on GPUs."""
    with measuring("bench warm") as bar:
        from starspec.bench.warm import QUICK, WarmPlan, blocks, measure_warm  # noqa: PLC0415 (torch)

        plan = QUICK if quick else WarmPlan()
        model = ModelConfig(
            model=draft, dtype=dtype, quantization=draft_quantization, num_rows=1, num_threads=num_threads
        )
        bar.begin("idling and drafting", plan.num_repeats)
        report = measure_warm(model, plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick)
