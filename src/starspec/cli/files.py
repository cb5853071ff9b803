"""Options for files: prompts that measurements take, results that they save. Files are checked before hours of work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from starspec.config.option import MEASURE, NONE_GIVEN, Option
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
    """The prompts of each file, or our own. Raises: ConfigError if a file cannot be read, or is given twice."""
    check_different(paths)
    return [read_prompts(path) for path in paths] if paths else [own_prompts()]


def check_different(paths: list[Path] | None) -> None:
    """Raises: ConfigError if --dataset gives a file twice, under one name or two: its prompts would count twice."""
    places = [os.path.realpath(path) for path in paths or ()]
    for index, path in enumerate(paths or ()):
        if places[index] in places[:index] and os.path.isfile(path):  # noqa: PTH113 (never raises)
            raise ConfigError(f"--dataset gives '{path}' twice: give each file once")


def all_prompts(paths: list[Path] | None) -> list[Prompt]:
    """The prompts of all files, or our own. Raises: ConfigError if a file cannot be read."""
    return [prompt for prompts in prompt_files(paths) for prompt in prompts]


def spread_prompts(path: Path | None, num_prompts: int | None, default: int) -> list[Prompt]:
    """So many prompts of a file or of our own, evenly spread.

    Args:
        num_prompts: as the command line gives it; None = the default, or all if there are fewer.
    Raises: ConfigError if the file cannot be read; as `check_enough`.
    """
    prompts = all_prompts(None if path is None else [path])
    check_enough(num_prompts, [prompts])
    return spread(prompts, default if num_prompts is None else num_prompts)


def prompts_option(default: int) -> Option:
    """The option --num-prompts, whose default takes what there is: a field with it has None as its own default."""
    what = "Prompts to answer, spread evenly over the file."
    return Option(what, MEASURE, least=1, shown=f"{default}, or all if there are fewer")


def check_enough(num: int | None, groups: Sequence[Sequence[object]], option: str = "--num-prompts") -> None:
    """Check that each group of prompts has as many as are asked for: fewer answers would pass for as many.

    Args:
        num: as the command line gives it; None = it does not, and a default takes what there is.
    Raises: ConfigError that names the option.
    """
    fewest = min(map(len, groups), default=0)
    if num is not None and num > fewest:
        where = " in one of the files" if len(groups) > 1 else ""
        raise ConfigError(f"{option} {num}: there are only {fewest}{where}: ask for at most so many")


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
