"""`starspec bench star`, `async` and `warm`: what becomes of a hub's idle time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from starspec.cli import options as opt
from starspec.cli.options import MEASURE
from starspec.cli.process import log_to_stderr
from starspec.cli.progress import ProgressBar
from starspec.cli.prompt_files import Datasets, prompt_files
from starspec.cli.quick import Quick, show_caution
from starspec.cli.saved_files import JsonFile
from starspec.cli.star_tables import async_table, real_pair_table, star_table, warm_table
from starspec.cli.tables import out, show_ratios
from starspec.config import ModelConfig
from starspec.errors import ConfigError

if TYPE_CHECKING:
    from starspec.harness.report import Report

Traces = Annotated[
    Path | None,
    typer.Option(
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
        help="The modelled forwards take so many times as long, and so does the run; rates and times are told in "
        "modelled time, so that what a slow or busy machine adds counts that much less.",
        rich_help_panel=MEASURE,
    ),
]


def star(
    slow_motion: SlowMotion = 1.0, quick: Quick = False, json_file: JsonFile = None, traces: Traces = None
) -> None:
    """One hub and more and more targets at StarSD's operating point: as published, and with batches and run-ahead.

    Real processes and sockets, synthetic accelerators.
    """
    log_to_stderr("warning")
    with ProgressBar("bench star") as bar:
        from starspec.bench.star.measure import QUICK, TRACED, StarPlan, measure_star, trace_star  # noqa: PLC0415

        plan = replace(QUICK if quick else StarPlan(), slow_motion=slow_motion)
        bar.begin("serving", plan.num_turns + (len(TRACED) if traces else 0))
        if traces is not None:
            trace_star(traces, bar.turn)
        report = measure_star(plan, bar.turn)
    _show(star_table(report.rows, slow_motion), report, quick, json_file)


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
    """One hub and one target, a core each: drafting that waits for verdicts, and drafting that does not.

    Synthetic accelerators with AMUSD's step times; or, with --target and --draft, real models.
    """
    if target is None or draft is None:
        if (target, draft, traces, num_prompts) != (None, None, None, None):
            raise ConfigError("bench async with real models, their prompts and --traces need both --target and --draft")
        _async_synthetic(quick, json_file)
        return
    log_to_stderr("warning")
    with ProgressBar("bench async") as bar:
        bar.begin("loading", None)
        from starspec.bench.star.real_pair import QUICK, PairPlan, measure_real_pair  # noqa: PLC0415 (torch)

        plan = QUICK if quick else PairPlan()
        plan = replace(plan, num_prompts=num_prompts or plan.num_prompts)
        target_model = ModelConfig(model=target, dtype=dtype, num_rows=1, num_threads=1)
        draft_model = ModelConfig(model=draft, dtype=dtype, quantization=draft_quantization, num_rows=1, num_threads=1)
        prompts = [prompt for prompts in prompt_files(dataset) for prompt in prompts]
        bar.begin("decoding", plan.num_turns + (3 if traces else 0))
        report = measure_real_pair(target_model, draft_model, prompts, plan, bar.turn, traces)
    _show(real_pair_table(report.rows), report, quick, json_file)


def _async_synthetic(quick: bool, json_file: Path | None) -> None:
    log_to_stderr("warning")
    with ProgressBar("bench async") as bar:
        from starspec.bench.star.async_pair import QUICK, AsyncPlan, measure_async  # noqa: PLC0415 (torch)

        plan = QUICK if quick else AsyncPlan()
        bar.begin("serving", plan.num_turns)
        report = measure_async(plan, bar.turn)
    _show(async_table(report.rows), report, quick, json_file)


def warm(
    draft: opt.GivenDraft,
    draft_quantization: opt.GivenQuantization = "int4",
    dtype: opt.Dtype = opt.MODEL.dtype,
    num_threads: opt.NumThreads = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Whether a draft that has idled for some milliseconds takes longer for its next token, as StarSD found on GPUs."""
    log_to_stderr("warning")
    with ProgressBar("bench warm") as bar:
        bar.begin("loading", None)
        from starspec.bench.warm import QUICK, WarmPlan, measure_warm  # noqa: PLC0415 (torch)

        plan = QUICK if quick else WarmPlan()
        model = ModelConfig(
            model=draft, dtype=dtype, quantization=draft_quantization, num_rows=1, num_threads=num_threads
        )
        bar.begin("idling and drafting", plan.num_repeats)
        report = measure_warm(model, plan, bar.turn)
    _show(warm_table(report.rows), report, quick, json_file)


def _show(table: Table, report: Report, quick: bool, json_file: Path | None) -> None:
    """Print a report, and save it if there is a file for it."""
    from starspec.harness.report import write_report  # noqa: PLC0415 (torch)

    out().print(table)
    show_ratios(report.ratios)
    show_caution(quick)
    if json_file is not None:
        write_report(report, json_file)
