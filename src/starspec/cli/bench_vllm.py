"""`starspec bench vllm`: vLLM servers with a hub's drafts, with drafts of their own, and without."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Annotated

from starspec.cli.binder import bound, take
from starspec.cli.files import Datasets, JsonFile, check_enough, prompt_files
from starspec.cli.measuring import Quick, measuring, publish
from starspec.cli.options import over
from starspec.config import Option
from starspec.config.model import MAX_NUM_THREADS
from starspec.config.option import MEASURE, MODELS
from starspec.errors import ConfigError
from starspec.harness.model_pair import MODEL_OPTIONS, ModelPair
from starspec.openmp import num_threads

VLLM = "vLLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The servers that are compared."""

    vllm_python: Annotated[
        str,
        Option(
            "Python of an environment with vLLM and starspec; `make test-vllm` creates one in .venv-vllm.",
            VLLM,
            envvar="VLLM_PYTHON",
        ),
    ] = ".venv-vllm/bin/python"
    vllm_args: Annotated[
        tuple[str, ...],
        Option("More arguments of each server's command line.", VLLM, form="arguments"),
    ] = ("--enforce-eager",)
    num_draft_tokens: Annotated[
        int, Option("Largest number of draft tokens of the hub.", MEASURE, least=1, most=16)
    ] = 4
    num_threads: Annotated[
        int | None,
        Option(
            "CPU threads of each server, and of the hub.",
            MODELS,
            least=1,
            most=MAX_NUM_THREADS,
            shown=MODEL_OPTIONS["num_threads"].shown,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlanOptions:
    """What of a `VllmPlan` the command line says; None = not said."""

    num_prompts: Annotated[int | None, Option("Prompts of each file to answer.", MEASURE, least=1, shown="4")] = None
    batch_sizes: Annotated[
        tuple[int, ...] | None,
        Option("Prompts that are answered at once.", MEASURE, least=1, shown="1,4", form="numbers"),
    ] = None
    lengths: Annotated[
        tuple[int, ...] | None,
        Option(
            "Draft lengths of vLLM's own draft model, as 3,5; each needs a server.",
            MEASURE,
            ("--own-lengths",),
            least=1,
            shown="3,5",
            form="numbers",
        ),
    ] = None


@bound
def vllm(
    pair: Annotated[ModelPair, take("target", "draft", "quantization", "dtype")],
    servers: VllmOptions,
    options: VllmPlanOptions,
    dataset: Datasets = None,
    quick: Quick = False,
    json_file: JsonFile = None,
) -> None:
    """Compare vLLM with a hub's drafts, with vLLM's own draft model, and without drafts: real servers, greedy, in
    turns.

    It also measures the cost of a hub that does not answer. Exits 1 if an answer differs without a near-tie.
    """
    prompts = prompt_files(dataset)
    check_enough(options.num_prompts, prompts)
    if shutil.which(servers.vllm_python) is None:
        raise ConfigError(f"--vllm-python: there is no program '{servers.vllm_python}'; `make test-vllm` makes one")
    pair.find()
    with measuring("bench vllm") as bar:
        from starspec.bench.vllm.measure import QUICK, VllmPlan, blocks, measure_vllm, mistakes_of  # noqa: PLC0415
        from starspec.bench.vllm.methods import VllmModels  # noqa: PLC0415
        from starspec.harness.report import write_report  # noqa: PLC0415 (torch)

        models = VllmModels(
            python=servers.vllm_python,
            target=pair.target,
            draft=pair.draft,
            quantization=pair.quantization,
            dtype=pair.dtype,
            num_threads=servers.num_threads or num_threads(os.environ),
            num_draft_tokens=servers.num_draft_tokens,
            vllm_options=servers.vllm_args,
        )
        plan = over(QUICK if quick else VllmPlan(), options)
        for report in measure_vllm(models, prompts, plan, bar.advance):
            if json_file is not None:
                write_report(report, json_file)
    publish(report, blocks(report), json_file, quick=quick, mistakes=mistakes_of(report))
