"""Files that a process leaves behind: each is written whole or not at all. What cannot be written is refused early."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starspec.errors import OutputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file beside `path`, which takes its place when the block ends; if the block fails, nothing changes.

    Yields: the file to write. A device or a pipe has no place to take: it is written directly.
    Raises: OutputError for an OSError inside.
    """
    try:
        place = path.resolve()  # a link stays a link
        has_place = place.is_file() or not place.exists()
        unfinished = place.with_name(f".starspec-{os.getpid()}.part") if has_place else place
        try:
            yield unfinished
            if has_place:
                unfinished.replace(place)
        finally:
            if has_place:
                unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"'{path}' cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as `replacing` does. Raises: OutputError."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


def why_no_file(path: Path) -> str | None:
    """Why a file cannot be written there later, as a sentence; None if it can. Makes nothing."""
    try:
        if path.is_dir():
            return f"'{path}' is a folder: give the name of a file"
        return _why_nothing_below(path) or _why_read_only(path, path if path.exists() else path.absolute().parent)
    except OSError as error:
        return f"'{path}' cannot be written: {error.strerror}"


def why_no_folder(path: Path) -> str | None:
    """Why a folder cannot be used, or made in a folder that is there, as a sentence; None if it can. Makes nothing."""
    try:
        if path.is_dir():
            return _why_read_only(path, path)
        if path.exists():
            return f"'{path}' is a file: give the name of a folder"
        parent = path.absolute().parent
        if parent == parent.parent:
            return f"'{path}' would be a new folder at the root of the file system: name one in a folder of yours"
        return _why_nothing_below(path) or _why_read_only(path, parent)
    except OSError as error:
        return f"'{path}' cannot be written: {error.strerror}"


def _why_nothing_below(path: Path) -> str | None:
    parent = path.absolute().parent
    if parent.is_dir():
        return None
    return f"'{path}' cannot be written: " + (
        f"'{parent}' is not a folder" if parent.exists() else f"there is no folder '{parent}'"
    )


def _why_read_only(path: Path, place: Path) -> str | None:
    return None if os.access(place, os.W_OK) else f"'{path}' cannot be written: '{place}' is read-only"
