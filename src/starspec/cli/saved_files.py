"""Options that say where a result is saved. All is checked that can be before hours of measuring."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from starspec.cli.options import MEASURE, NONE_GIVEN
from starspec.errors import ConfigError
from starspec.harness.figures import check_format, require_matplotlib


def _check_json(path: Path | None) -> Path | None:
    if path is not None:
        _check_can_be_written(path)
    return path


def _check_png(path: Path | None) -> Path | None:
    if path is not None:
        require_matplotlib()
        try:
            check_format(path)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from error
        _check_can_be_written(path)
    return path


def _check_can_be_written(path: Path) -> None:
    """Makes nothing yet. Raises: BadParameter, to which typer adds the option's name."""
    try:
        place = next(each for each in (path, *path.absolute().parents) if each.exists())
        is_folder = place.is_dir()
    except OSError as error:
        raise typer.BadParameter(f"'{path}' cannot be written: {error.strerror}") from error
    if is_folder and place == path:
        raise typer.BadParameter(f"'{path}' is a folder: give the name of a file")
    if not is_folder and place != path:
        raise typer.BadParameter(f"'{path}' cannot be written: '{place}' is no folder")
    if not os.access(place, os.W_OK):
        raise typer.BadParameter(f"'{path}' cannot be written: '{place}' is read-only")


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        callback=_check_json,
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
