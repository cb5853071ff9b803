"""Model folders that starspec makes itself and keeps: each is made once, by one process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Advance = Callable[[str], None]  # names the step that begins now


def cache_folder() -> Path:
    """Where converted models are kept: $STARSPEC_CACHE, or ~/.cache/starspec."""
    return Path(os.environ.get("STARSPEC_CACHE") or "~/.cache/starspec").expanduser()


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A cached folder, made if it is not there yet.

    One process makes it while others wait; it appears under its name only when complete, so a process that died
    half-way leaves nothing that another takes for a model.

    Args:
        make: fills the empty folder that it is given.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(folder)
    return folder


@contextlib.contextmanager
def progress_steps(title: str, num_steps: int) -> Iterator[Advance]:
    """A progress bar on stderr over steps of unknown length."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
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
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
