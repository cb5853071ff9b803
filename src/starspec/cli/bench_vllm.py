"""`starspec bench vllm`: a vLLM server with drafts of a hub."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Annotated

import typer

from starspec.cli import given
from starspec.cli import options as opt
from starspec.cli.files import Datasets, JsonFile, prompt_files
from starspec.cli.measuring import Quick, measuring, publish
from starspec.cli.options import MEASURE

VLLM = "vLLM"


def vllm(
    target: opt.TargetModel,
    draft: opt.GivenDraft,
    vllm_python: Annotated[
        str,
        typer.Option(
            envvar="VLLM_PYTHON",
            help="Python of an environment with vLLM and starspec; `make test-vllm` creates one in .venv-vllm.",
            rich_help_panel=VLLM,
        ),
    ] = ".venv-vllm/bin/python",
    vllm_args: Annotated[
        str, typer.Option(help="More arguments of each server's command line.", rich_help_panel=VLLM)
    ] = "--enforce-eager",
    draft_quantization: opt.GivenQuantization = "int4",
    num_draft_tokens: Annotated[
        int, typer.Option(min=1, max=16, help="Largest number of draft tokens of the hub.", rich_help_panel=MEASURE)
    ] = 4,
    dataset: Datasets = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="Of each file.", show_default="4", rich_help_panel=MEASURE)
    ] = None,
    own_lengths: Annotated[
        str | None,
        typer.Option(
            help="Draft lengths of vLLM's own draft model, as 3,5; each needs a server.",
            show_default="3,5",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    quick: Quick = False,
    json_file: JsonFile = None,
    dtype: opt.Dtype = opt.MODEL.dtype,
    num_threads: Annotated[
        int, typer.Option(min=1, help="CPU threads of each server, and of the hub.", rich_help_panel=opt.MODELS)
    ] = 2,
) -> None:
    """Compare vLLM with a hub's drafts, with vLLM's own draft model, and without drafts: real servers, greedy, in
    turns.

    It also measures the cost of a hub that does not answer. Exits 1 if an answer differs without a near-tie.
    """
    with measuring("bench vllm") as bar:
        from starspec.bench.vllm.measure import QUICK, VllmPlan, blocks, measure_vllm, mistakes_of  # noqa: PLC0415
        from starspec.bench.vllm.methods import VllmModels  # noqa: PLC0415
        from starspec.harness.report import write_report  # noqa: PLC0415 (torch)

        models = VllmModels(
            python=vllm_python,
            target=target,
            draft=draft,
            quantization=draft_quantization,
            dtype=dtype,
            num_threads=num_threads,
            num_draft_tokens=num_draft_tokens,
            vllm_options=shlex.split(vllm_args),
        )
        plan = QUICK if quick else VllmPlan()
        lengths = given.numbers(own_lengths, "--own-lengths")
        plan = replace(plan, num_prompts=num_prompts or plan.num_prompts, lengths=lengths or plan.lengths)
        for report in measure_vllm(models, prompt_files(dataset), plan, bar.advance):
            if json_file is not None:
                write_report(report, json_file)
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))
