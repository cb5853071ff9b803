"""`starspec train`: an EAGLE head for a target, from prompts alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from starspec.cli.binder import bound, take
from starspec.cli.files import JsonFile, check_folder, folder_named
from starspec.cli.measuring import measuring, publish
from starspec.errors import ConfigError
from starspec.harness.datasets import read_prompts
from starspec.models.loading.checks import check_models, find_models
from starspec.openmp import num_threads
from starspec.quoting import is_unicode
from starspec.train.plan import HeadPlan


@bound
def train(
    plan: Annotated[HeadPlan, take(out=Path())],
    folder: Annotated[
        Path,
        typer.Option(
            "--out",
            parser=folder_named,
            metavar="PATH",
            callback=check_folder,
            help="Folder of the head; its work/ is for resuming.",
        ),
    ],
    json_file: JsonFile = None,
) -> None:
    """Train an EAGLE head: the target answers prompts, and the head learns to predict its tokens.

    The same command resumes an interrupted training.
    """
    for option, path in (("--out", folder), ("--start-from", plan.start_from)):
        if not is_unicode(str(path)):  # the library that reads and writes weights takes no other name
            raise ConfigError(f"{option} is not valid Unicode text: name a folder in UTF-8")
    read_prompts(plan.prompts)
    check_models(plan.answers.model)
    find_models(None if plan.start_from is None else str(plan.start_from))
    with measuring("train") as bar:
        from starspec.train.pipeline import train_head  # noqa: PLC0415 (torch)
        from starspec.train.report import summary  # noqa: PLC0415

        report = train_head(replace(plan, out=folder).resolved(num_threads(os.environ)), bar.show)
    publish(report, [*summary(report), f"the head is in {folder}"], json_file)
