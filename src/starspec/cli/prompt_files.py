"""Prompts that measurements take: files by their paths, or our own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from starspec.cli.options import MEASURE

if TYPE_CHECKING:
    from starspec.harness.datasets import Prompt

Datasets = Annotated[
    list[Path] | None,
    typer.Option(
        "--dataset",
        help='Prompts, as JSON lines with "turns"; may be repeated, each file gives an equal share.',
        show_default="prompts of our own",
        rich_help_panel=MEASURE,
    ),
]


def prompt_files(paths: list[Path] | None) -> list[list[Prompt]]:
    """The prompts of each file, or our own. Raises: ConfigError if one cannot be read."""
    from starspec.harness.datasets import own_prompts, read_prompts  # noqa: PLC0415 (torch)

    return [read_prompts(path) for path in paths] if paths else [own_prompts()]
