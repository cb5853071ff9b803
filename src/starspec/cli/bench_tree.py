"""`starspec bench tree`: chains and trees of different depth, width and size."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated

from starspec.bench.tree import plan as tree_plan
from starspec.cli.binder import bound, take
from starspec.cli.files import Datasets, JsonFile, PngFile, check_enough, prompt_files
from starspec.cli.measuring import Quick, measuring, publish
from starspec.cli.options import over
from starspec.config import Option
from starspec.config.option import MEASURE, P_MIN_RULE
from starspec.harness.model_pair import ModelPair

GRID, SUITABLE = "Grid", "what suits the kind of draft"


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
    check_enough(options.num_prompts, prompts)
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
