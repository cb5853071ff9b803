"""`starspec bench grammar`: answers held to JSON schemas, with every kind of draft and without."""

from __future__ import annotations

from typing import Annotated

import typer

from starspec.bench.grammar.plan import GrammarPlan
from starspec.cli.binder import bound, take
from starspec.cli.files import JsonFile
from starspec.cli.measuring import Quick, measuring, publish
from starspec.config.option import MODELS
from starspec.harness.model_pair import ModelPair
from starspec.models.heads.detect import check_names_a_head
from starspec.models.loading.checks import find_pair

Head = Annotated[
    str | None,
    typer.Option("--head", help="EAGLE head that drafts, too.", show_default="none", rich_help_panel=MODELS),
]


@bound
def grammar(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "dtype", "device", "numerics", "num_threads")],
    plan: GrammarPlan,
    head: Head = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Answer sixty JSON schemas with every kind of draft: do all answers validate, and are they those without drafts?

    It also measures what masks cost, and the tokens for each forward with the schema, without it, and without drafting
    what it forces. Exits 1 if an answer does not validate, or is another one.
    """
    models.find()
    find_pair(models.target, head)
    if head is not None:
        check_names_a_head(head)
    with measuring("bench grammar") as bar:
        from starspec.bench.grammar.measure import blocks, measure_grammar, mistakes_of  # noqa: PLC0415 (torch)

        report = measure_grammar(models, head, plan.in_small() if quick else plan, bar.advance)
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))
