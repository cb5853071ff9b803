"""What a training keeps for its next start: a folder for each stage, and complete steps only."""

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

from starspec.errors import ConfigError, OutputError
from starspec.models.loading.transformers_calls import first_line


def stage_folder(path: Path, made_for: Mapping[str, object]) -> Path:
    """The folder of one stage. Deleting it restarts that stage.

    Args:
        made_for: everything that the content depends on; a training with other values must not use it.
    Effects: creates the folder.
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
    """Turn an error of writing a file, such as a full disk, into one sentence.

    Raises: OutputError for an OSError or a SafetensorError inside.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise OutputError(f"'{path}' cannot be written: {_reason(error)}") from error


def _reason(error: OSError | SafetensorError) -> str:
    """The system's reason; safetensors gives its error number within a longer text."""
    if isinstance(error, OSError):
        return error.strerror or first_line(error)
    number = re.search(r"\(os error (\d+)\)", str(error))
    return os.strerror(int(number[1])) if number else first_line(error)


@contextlib.contextmanager
def uninterrupted(save: Callable[[], None]) -> Iterator[None]:
    """Delay an interrupt (SIGINT) until the block ends; then save, and raise KeyboardInterrupt.

    A second interrupt is not delayed. The block just runs in threads without signals, and where SIGINT is ignored, as
    in background commands of a shell.

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
