"""`starspec bench star`, `async` and `warm`: how a hub's idle time is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from starspec.cli.binder import bound, take
from starspec.cli.files import Datasets, JsonFile, all_prompts, check_enough, check_folder, folder_named
from starspec.cli.measuring import Quick, measuring, publish
from starspec.cli.options import over
from starspec.config import MAX_DRAFT_TOKENS, HubConfig, ModelConfig, Option
from starspec.config.option import MEASURE, SPECULATION
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt
from starspec.harness.model_pair import ModelPair

Traces = Annotated[
    Path | None,
    typer.Option(
        parser=folder_named,
        metavar="PATH",
        callback=check_folder,
        help="Also write traces of a few turns, at full speed, for Chrome or Perfetto, and a picture of them to this "
        "folder.",
        show_default="no traces",
        rich_help_panel=MEASURE,
    ),
]

PAIR = ("target", "draft", "quantization", "dtype")  # of a command that measures synthetic models without them
NO_PAIR = ModelPair(target="", draft="")


@dataclass(frozen=True, slots=True, kw_only=True)
class RealStarPlanOptions:
    """What of a `RealStarPlan` the command line says; None = not said."""

    num_draft_tokens: Annotated[
        int | None,
        Option("Draft tokens of a round.", SPECULATION, ("--spec-tokens",), least=1, most=MAX_DRAFT_TOKENS, shown="3"),
    ] = None
    num_targets: Annotated[
        tuple[int, ...] | None,
        Option(
            "Numbers of targets to serve with real models, as 1,2,3.",
            MEASURE,
            least=1,
            most=HubConfig().max_targets,
            shown="1,2,3",
            form="numbers",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StarPlanOptions:
    """What of a `StarPlan` the command line says."""

    slow_motion: Annotated[
        float,
        Option(
            "Modelled forwards take so many times as long, and so does the run. Rates and times are in modelled time, "
            "so the overhead of a slow or busy machine counts less.",
            MEASURE,
            least=1.0,
            most=16.0,
        ),
    ] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPairOptions:
    """What of a `RealPairPlan` the command line says; None = not said."""

    num_prompts: Annotated[int | None, Option("Prompts of all files to answer.", MEASURE, least=1, shown="8")] = None


@bound
def star(
    pair: Annotated[ModelPair, take(*PAIR, target="", draft="")],
    real: RealStarPlanOptions,
    synthetic: StarPlanOptions,
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    traces: Traces = None,
) -> None:
    """Measure one hub with more and more targets at StarSD's operating point, with and without batches and run-ahead.

    It uses real processes and sockets, and synthetic accelerators; or real models with --target and --draft, beside the
    synthetic star that takes their step times.
    """
    if pair.target and pair.draft:
        if (synthetic, traces) != (StarPlanOptions(), None):
            raise ConfigError(
                "--slow-motion and --traces are of synthetic accelerators: leave --target and --draft out"
            )
        _real_star(pair, all_prompts(dataset), real, quick, json_file)
        return
    if (pair, real, dataset) != (NO_PAIR, RealStarPlanOptions(), None):
        raise ConfigError("bench star with real models and their prompts needs both --target and --draft")
    with measuring("bench star", None) as bar:
        from starspec.bench.star.measure import (  # noqa: PLC0415 (torch)
            QUICK,
            TRACED,
            StarPlan,
            measure_star,
            trace_star,
        )
        from starspec.bench.star.tables import blocks  # noqa: PLC0415

        plan = over(QUICK if quick else StarPlan(), synthetic)
        bar.begin("serving", plan.num_turns + (len(TRACED) if traces else 0))
        if traces is not None:
            trace_star(traces, bar.turn)
        report = measure_star(plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick)


def _real_star(
    pair: ModelPair, prompts: Sequence[Prompt], options: RealStarPlanOptions, quick: bool, json_file: Path | None
) -> None:
    pair.find()
    with measuring("bench star") as bar:
        from starspec.bench.star.real_star import (  # noqa: PLC0415 (torch)
            QUICK,
            RealStarPlan,
            blocks,
            measure_real_star,
        )

        plan = over(QUICK if quick else RealStarPlan(), options)
        bar.begin("serving", plan.num_turns)
        report = measure_real_star(*_on_one_core(pair), prompts, plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick)


def _on_one_core(pair: ModelPair) -> tuple[ModelConfig, ModelConfig]:
    """Target and draft, each with one cache row and one thread."""
    target = ModelConfig(model=pair.target, dtype=pair.dtype, num_rows=1, num_threads=1)
    return target, replace(target, model=pair.draft, quantization=pair.quantization)


@bound
def async_pair(
    pair: Annotated[ModelPair, take(*PAIR, target="", draft="")],
    options: RealPairOptions,
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    traces: Traces = None,
) -> None:
    """Compare drafting that waits for verdicts with drafting that does not: one hub and one target, one core each.

    It uses synthetic accelerators with AMUSD's step times, or real models with --target and --draft.
    """
    if not (pair.target and pair.draft):
        if (pair, traces, options, dataset) != (NO_PAIR, None, RealPairOptions(), None):
            raise ConfigError("bench async with real models, their prompts and --traces need both --target and --draft")
        _async_synthetic(quick, json_file)
        return
    prompts = all_prompts(dataset)
    check_enough(options.num_prompts, [prompts])
    pair.find()
    with measuring("bench async") as bar:
        from starspec.bench.star.real_pair import QUICK, RealPairPlan, blocks, measure_real_pair  # noqa: PLC0415

        plan = over(QUICK if quick else RealPairPlan(), options)
        bar.begin("decoding", plan.num_turns + (3 if traces else 0))
        report = measure_real_pair(*_on_one_core(pair), prompts, plan, bar.turn, traces)
    publish(report, blocks(report), json_file, quick=quick)


def _async_synthetic(quick: bool, json_file: Path | None) -> None:
    with measuring("bench async", None) as bar:
        from starspec.bench.star.async_pair import QUICK, AsyncPlan, blocks, measure_async  # noqa: PLC0415 (torch)

        plan = QUICK if quick else AsyncPlan()
        bar.begin("serving", plan.num_turns)
        report = measure_async(plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick)


@bound
def warm(
    draft: Annotated[ModelPair, take("draft", "quantization", target="")],
    model: Annotated[ModelConfig, take("dtype", "num_threads", model="", num_rows=1)],
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Measure whether a draft is slower after some idle milliseconds, as StarSD found on GPUs."""
    draft.find()
    if draft.has_head:
        raise ConfigError(f"bench warm times draft models, and '{draft.draft}' is an EAGLE head")
    with measuring("bench warm") as bar:
        from starspec.bench.warm import QUICK, WarmPlan, blocks, measure_warm  # noqa: PLC0415 (torch)

        plan = QUICK if quick else WarmPlan()
        model = replace(model, model=draft.draft, quantization=draft.quantization)
        bar.begin("idling and drafting", plan.num_repeats)
        report = measure_warm(model, plan, bar.turn)
    publish(report, blocks(report), json_file, quick=quick)
