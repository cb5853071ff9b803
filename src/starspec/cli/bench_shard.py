"""`starspec bench shard`: a target in stages over slow links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from starspec.bench.shard.model_plan import ModelPlan
from starspec.cli.binder import bound, take
from starspec.cli.files import Datasets, JsonFile, all_prompts, check_enough
from starspec.cli.measuring import Quick, measuring, publish
from starspec.errors import ConfigError
from starspec.harness.model_pair import ModelPair
from starspec.models.loading.checks import check_cut, check_room


@bound
def shard(
    models: Annotated[ModelPair, take("target", "draft", "quantization", "dtype", target="", draft="")],
    plan: ModelPlan,
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Compare plain, synchronous and in-flight decoding of a target in stages, on modelled links.

    Without models it does so in virtual time, where any machine gives the same figures, and by processes and sockets
    whose layers sleep; DSD's equations are printed beside them. Exits 1 if the two differ by more than 15%. With
    --target and --draft a real model is cut into stages, each on a core, behind a `starspec lab`. Exits 1 if drafts or
    stages changed a token.
    """
    if not models.target and not models.draft:
        if (models, plan, dataset) != (ModelPair(target="", draft=""), ModelPlan(), None):
            raise ConfigError(
                "bench shard with real models needs --target and --draft; on modelled layers it takes no options but "
                "--quick and --json"
            )
        _on_modelled_layers(quick, json_file)
        return
    if not (models.target and models.draft):
        raise ConfigError("bench shard with real models needs both --target and --draft")
    prompts = all_prompts(dataset)
    check_enough(plan.num_prompts, [prompts])
    models.find()
    plan = plan.in_small() if quick else plan
    check_cut(models.target, plan.num_stages)
    check_room(models.target_config(), plan.max_tokens)
    with measuring("bench shard") as bar:
        from starspec.bench.shard.real_models import blocks, measure_models, mistakes_of  # noqa: PLC0415 (torch)

        report = measure_models(models, prompts, plan, bar.advance)
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))


def _on_modelled_layers(quick: bool, json_file: Path | None) -> None:
    with measuring("bench shard", None) as bar:
        from starspec.bench.shard.synthetic import (  # noqa: PLC0415 (torch)
            QUICK,
            ShardPlan,
            blocks,
            measure_shard,
            mistakes_of,
            ways,
        )

        bar.begin("ways to decode", len(ways()))
        report = measure_shard(QUICK if quick else ShardPlan(), bar.turn)
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))
