"""Options for files: prompts that measurements take, results that they save. Files are checked before hours of work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from starspec.config.option import MEASURE, NONE_GIVEN
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, own_prompts, read_prompts, spread
from starspec.harness.figures import check_format, require_matplotlib
from starspec.output_files import why_no_file, why_no_folder

Datasets = Annotated[
    list[Path] | None,
    typer.Option(
        "--dataset",
        help='Prompts, as JSON lines with "turns"; may be repeated, each file gives an equal share.',
        show_default="prompts of our own",
        rich_help_panel=MEASURE,
    ),
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        help='Prompts, as JSON lines with "turns"; the first turn of each is used.',
        show_default="32 prompts of our own",
        rich_help_panel=MEASURE,
    ),
]


def prompt_files(paths: list[Path] | None) -> list[list[Prompt]]:
    """The prompts of each file, or our own. Raises: ConfigError if a file cannot be read."""
    return [read_prompts(path) for path in paths] if paths else [own_prompts()]


def all_prompts(paths: list[Path] | None) -> list[Prompt]:
    """The prompts of all files, or our own. Raises: ConfigError if a file cannot be read."""
    return [prompt for prompts in prompt_files(paths) for prompt in prompts]


def spread_prompts(path: Path | None, num_prompts: int) -> list[Prompt]:
    """So many prompts of a file or of our own, evenly spread. Raises: ConfigError if the file cannot be read."""
    return spread(all_prompts(None if path is None else [path]), num_prompts)


def check_file(path: Path | None) -> Path | None:
    """The path of a file that will be written. Raises: BadParameter, to which typer adds the option's name."""
    return _unless(path, why_no_file)


def check_folder(path: Path | None) -> Path | None:
    """The path of a folder that files will be written to. Raises: as `check_file`."""
    return _unless(path, why_no_folder)


def folder_named(text: str) -> Path:
    """The parser of an option for a folder: an empty text would be the present one. Raises: BadParameter."""
    if not text:
        raise typer.BadParameter("the name of a folder is empty; '.' is the present one")
    return Path(text)


def _unless(path: Path | None, why_not: Callable[[Path], str | None]) -> Path | None:
    if path is not None and (why := why_not(path)):
        raise typer.BadParameter(why)
    return path


def _check_png(path: Path | None) -> Path | None:
    if path is not None:
        require_matplotlib()
        try:
            check_format(path)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
    return check_file(path)


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        callback=check_file,
        help="Save the result with its provenance here.",
        show_default=NONE_GIVEN,
        rich_help_panel=MEASURE,
    ),
]
PngFile = Annotated[
    Path | None,
    typer.Option(
        "--png",
        callback=_check_png,
        help="Save a picture of the result here: .png, .svg or .pdf.",
        show_default="no picture",
        rich_help_panel=MEASURE,
    ),
]
