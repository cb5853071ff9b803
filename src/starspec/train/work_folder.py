"""What a training leaves behind for its next start: a folder for each stage, and no step that is half done."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType

from safetensors import SafetensorError

from starspec.errors import ConfigError
from starspec.models.loading.transformers_calls import first_line


def stage_folder(path: Path, made_for: Mapping[str, object]) -> Path:
    """The folder of one stage. Whoever deletes it begins that stage anew.

    Args:
        made_for: what all of it depends on; another training must not take it up.
    Effects: makes the folder.
    Raises: ConfigError if it is there and was made for something else, or cannot be written.
    """
    file = path / "made_for.json"
    wanted = json.loads(json.dumps(made_for))
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            unfinished = path / "made_for.part"
            unfinished.write_text(json.dumps(wanted, indent=2) + "\n")
            unfinished.replace(file)
        found = json.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be used: {error.strerror}") from error
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"'{file}' is damaged; delete '{path}' to start anew")
    other = [name for name in wanted if found.get(name) != wanted[name]]
    if other:
        raise ConfigError(
            f"'{path}' is of a training with another {other[0].replace('_', ' ')}; "
            "delete it to start anew, or give another --out"
        )
    return path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what stops the writing of a file, such as a full disk, into one sentence.

    Raises: ConfigError for an OSError or a SafetensorError inside.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"'{path}' cannot be written: {_reason(error)}") from error


def _reason(error: OSError | SafetensorError) -> str:
    """What the system says; safetensors hides the number of its complaint in a longer text."""
    if isinstance(error, OSError):
        return error.strerror or first_line(error)
    number = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(number[1])) if number else first_line(error)


@contextlib.contextmanager
def uninterrupted(save: Callable[[], None]) -> Iterator[None]:
    """Put off an interrupt (SIGINT) until the block has ended; then save, and raise it.

    A second one is not put off. In a thread that gets no signals, and where they are ignored, as of a command that a
    shell runs in the background, the block just runs.

    Raises: KeyboardInterrupt. Effects: the process's handler of SIGINT, while the block runs.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield
        return
    came = False

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        save()
        raise KeyboardInterrupt
