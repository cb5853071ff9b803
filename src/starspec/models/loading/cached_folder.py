"""Model folders that starspec makes and keeps in its cache: each is made once, by one process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from starspec.errors import ConfigError

ANOTHER_CACHE: Final = "name a folder of yours in STARSPEC_CACHE"
Advance = Callable[[str], None]  # called with the name of the step that begins


def cache_folder() -> Path:
    """The folder of starspec's cache: $STARSPEC_CACHE, or ~/.cache/starspec.

    Raises: ConfigError if there is no such home.
    """
    path = os.environ.get("STARSPEC_CACHE") or "~/.cache/starspec"
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"there is no home for the cache '{path}': {ANOTHER_CACHE}") from error


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A cached folder. The first call makes it.

    One process makes it while others wait. The folder gets its name only when it is complete, so that a process that
    dies half-way leaves nothing that could be mistaken for a model.

    Args:
        folder: where it is.
        make: fills the empty folder that it is given.
    Raises: ConfigError if the cache cannot be read or written.
    """
    with _naming_the_cache(folder):
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(folder.name + ".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            with _naming_the_cache(folder):
                partial.mkdir()
            try:
                make(partial)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)  # gigabytes, perhaps, and the disk may be full
                raise
            partial.rename(folder)
    return folder


@contextlib.contextmanager
def progress_steps(title: str, num_steps: int) -> Iterator[Advance]:
    """Show a progress bar on stderr for steps of unknown length."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=num_steps)
        started = 0

        def advance(step: str) -> None:
            nonlocal started
            progress.update(task, description=f"{title}: {step}", completed=started)
            started += 1

        yield advance
        progress.update(task, description=title, completed=num_steps)


@contextlib.contextmanager
def _naming_the_cache(folder: Path) -> Iterator[None]:
    """Make a ConfigError of an OSError about the cached folder itself."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the cached model '{folder}' cannot be made: {error.strerror}; {ANOTHER_CACHE}") from error
