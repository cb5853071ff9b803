"""`starspec bench length`: the length policies beside every fixed length."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from starspec.bench.length.categories import by_category
from starspec.bench.length.real_plan import RealPlan
from starspec.cli.binder import bound, take
from starspec.cli.files import Datasets, JsonFile, PngFile, prompt_files
from starspec.cli.measuring import Quick, measuring, publish
from starspec.config.option import MEASURE, MODELS
from starspec.errors import ConfigError
from starspec.harness.model_pair import ModelPair
from starspec.models.heads.detect import check_names_a_head
from starspec.quoting import escaped

Head = Annotated[
    str,
    typer.Option(
        "--head",
        help="EAGLE head for the same target, measured beside the draft or instead of it.",
        show_default="no head",
        rich_help_panel=MODELS,
    ),
]
Synthetic = Annotated[
    bool,
    typer.Option(
        "--synthetic",
        help="Compare in virtual time, on synthetic accelerators; this is the default without --target.",
        rich_help_panel=MEASURE,
    ),
]
PAIR = ("target", "draft", "quantization", "method", "dtype", "device", "num_threads")


@bound
def length(
    pair: Annotated[ModelPair, take(*PAIR, target="", draft="")],
    plan: RealPlan,
    head: Head = "",
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    png_file: PngFile = None,
    synthetic: Synthetic = False,
) -> None:
    """Compare the length policies with every fixed length: in virtual time, or on real models.

    In virtual time any machine gives the same figures. The scenes vary acceptance, the costs of draft steps and target
    steps, the round trip, the batch, and the number of targets that share a hub. With --target and --draft, or --head,
    real models decode in cells of category, temperature and batch size. Exits 1 if a policy changed a token. Ctrl-C
    stops measuring; the cells so far are shown and saved.
    """
    drafters = _drafters(pair, head)
    if not drafters:
        if (pair, plan, head, dataset) != (ModelPair(target="", draft=""), RealPlan(), "", None):
            raise ConfigError(
                "bench length with real models needs --target, and --draft or --head; in virtual time it takes no "
                "options but --quick, --json and --png"
            )
        _in_virtual_time(quick, json_file, png_file)
        return
    if synthetic:
        raise ConfigError("--synthetic is without models: leave --target, --draft and --head out, or leave it out")
    files = dict(zip(_names_of(dataset), prompt_files(dataset), strict=True))
    by_category(files, plan.categories)  # an unknown name is refused before torch is imported
    for each in drafters.values():
        each.find()
    if head and pair.method == "draft_model":  # or a head whose config.json says it not
        check_names_a_head(head)
    with measuring("bench length") as bar:
        from starspec.bench.length.real_pair import measure_real_pair  # noqa: PLC0415 (torch)
        from starspec.bench.length.real_report import blocks, draw  # noqa: PLC0415

        report = measure_real_pair(drafters, files, plan.in_small() if quick else plan, bar.advance)
    publish(
        report,
        blocks(report),
        json_file,
        quick=quick,
        draw=partial(draw, report.rows, png_file) if png_file else None,
        mistakes=report.mistakes,
        is_whole=report.is_whole,
    )


def _names_of(dataset: list[Path] | None) -> list[str]:
    """A name for each file of prompts, which may be that of a category. Raises: ConfigError if two have one name."""
    names = [escaped(path.stem) for path in dataset] if dataset else ["prompts of our own"]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise ConfigError(f"--dataset: two files are called '{twice}', and the name tells them apart: rename one")
    return names


def _drafters(pair: ModelPair, head: str) -> dict[str, ModelPair]:
    """Name -> the target with that drafter; empty without a target or without a drafter."""
    found: dict[str, ModelPair] = {}
    if pair.target and pair.draft:
        found["draft"] = replace(pair, method="draft_model") if head else pair
    if pair.target and head:
        found["head"] = replace(pair, draft=head)
    return found


def _in_virtual_time(quick: bool, json_file: Path | None, png_file: Path | None) -> None:
    with measuring("bench length") as bar:
        from starspec.bench.length import grid, scaling  # noqa: PLC0415 (numpy)

        plan = grid.QUICK if quick else grid.GridPlan()
        bar.begin("scenes", len(plan.scenes))
        report = grid.measure_grid(plan, bar.turn)
        bar.begin("batch sizes", scaling.num_runs())
        rows = scaling.measure_scaling(scaling.QUICK_TOKENS if quick else plan.num_tokens, bar.turn)
        report = replace(report, ratios=report.ratios | scaling.ratios_of(rows), notes=report.notes | {"scaling": rows})
    publish(
        report,
        [*grid.blocks(report), scaling.table(rows)],
        json_file,
        quick=quick,
        draw=partial(scaling.draw, rows, png_file) if png_file else None,
    )
