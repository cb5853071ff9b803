"""Files that a process leaves behind: each is written whole or not at all. What cannot be written is refused early."""

from __future__ import annotations

import errno
import os
import select
import stat
import tempfile
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
        place, has_place = _place_of(path)
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
    return _why_no_file(path, is_replaced=True)


def why_no_log(path: Path) -> str | None:
    """Why lines cannot be appended to a file, as a sentence; None if they can. Makes nothing."""
    return _why_no_file(path, is_replaced=False)


def _why_no_file(path: Path, *, is_replaced: bool) -> str | None:
    try:
        if path.is_dir():
            return f"'{path}' is a folder: give the name of a file"
        place, has_place = _place_of(path)
        if not (has_place or is_replaced):  # a pipe's reader could stop the whole process
            return f"'{path}' is not a regular file"
        if why := _why_nothing_below(path, place.parent):
            return why
        own = [place] if place.exists() else []
        # the folder gets a new file, also one that then takes the place of another
        beside = [place.parent] if has_place and (is_replaced or not own) else []
        whys = (_why_read_only(path, each) for each in (*own, *beside))
        return next(filter(None, whys), None) or _why_no_room(path, (own or beside)[0])
    except OSError as error:
        return f"'{path}' cannot be written: {error.strerror}"


def why_no_folder(path: Path) -> str | None:
    """Why a folder cannot be used, or made in a folder that is there, as a sentence; None if it can. Makes nothing."""
    try:
        if path.is_dir():
            return _why_read_only(path, path) or _why_no_room(path, path)
        if path.exists():
            return f"'{path}' is a file: give the name of a folder"
        if path.is_symlink():
            return f"'{path}' cannot be written: it is a link to nothing"
        parent = path.absolute().parent
        if parent == parent.parent:
            return f"'{path}' would be a new folder at the root of the file system: name one in a folder of yours"
        return _why_nothing_below(path, parent) or _why_read_only(path, parent) or _why_no_room(path, parent)
    except OSError as error:
        return f"'{path}' cannot be written: {error.strerror}"


def _place_of(path: Path) -> tuple[Path, bool]:
    """What a link leads to, for a link stays a link; and whether a file can take its place: not of a device or a pipe.

    Raises: OSError, also if the link leads to itself.
    """
    place = Path(os.path.realpath(path))
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if path.exists() and not place.is_file():  # what it leads to may be a pipe without a name
        return path, False
    return place, True


def _why_nothing_below(path: Path, parent: Path) -> str | None:
    if parent.is_dir():
        return None
    return f"'{path}' cannot be written: " + (
        f"'{parent}' is not a folder" if parent.exists() else f"there is no folder '{parent}'"
    )


def _why_read_only(path: Path, place: Path) -> str | None:
    """Nothing gets into a folder that one may not enter; one need not be able to list it."""
    needed = os.W_OK | (os.X_OK if place.is_dir() else 0)
    return None if os.access(place, needed) else f"'{path}' cannot be written: '{place}' is read-only"


def _why_no_room(path: Path, place: Path) -> str | None:
    """Why a file, a folder or a device takes nothing. A pipe is not asked: opening one may wait for its reader."""
    if stat.S_ISFIFO(place.stat().st_mode):
        return None
    descriptor = os.open(place, os.O_PATH if place.is_dir() else os.O_WRONLY | os.O_NOCTTY)
    try:
        why = why_full(descriptor)
    finally:
        os.close(descriptor)
    return f"'{path}' cannot be written: {why}" if why else None


def why_full(descriptor: int) -> str | None:
    """Why nothing can be written to an open file, folder, pipe or device, in the system's words; None if it may go.

    Writes nothing. Quotas and limits of a file's size are not seen.
    """
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISCHR(mode):
            os.write(descriptor, b"")  # a full device says so
        elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            poll = select.poll()
            poll.register(descriptor, 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                return os.strerror(errno.EPIPE)  # the reader is gone
        else:
            disk = os.fstatvfs(descriptor)
            if disk.f_blocks and not disk.f_bfree:
                return os.strerror(errno.ENOSPC)
            if not disk.f_blocks and stat.S_ISDIR(mode):  # no disk: the kernel's own files, or one that does not say
                with tempfile.TemporaryFile(dir=f"/proc/self/fd/{descriptor}"):
                    pass
    except OSError as error:
        return reason_of(error)
    return None


def reason_of(error: OSError) -> str:
    """Why something could not be written, in words for people."""
    return "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
