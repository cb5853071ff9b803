"""Reading .gguf files: converted once, through transformers, to a Hugging Face folder in the local cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from starspec.models.loading.foreign import reading
from starspec.models.loading.gguf_facts import apply, read_facts

FORMAT = 2  # of converted folders: those of another are not taken

Advance = Callable[[str], None]  # names the step that begins now


def cache_folder() -> Path:
    """Where converted models are kept: $STARSPEC_CACHE, or ~/.cache/starspec."""
    return Path(os.environ.get("STARSPEC_CACHE") or "~/.cache/starspec").expanduser()


def converted_folder(gguf: Path) -> Path:
    """The Hugging Face folder of a .gguf file, converted the first time it is asked for.

    The file is known by its path, size and time of change: hashing gigabytes at each start would cost seconds.

    Effects: a folder in the cache; a progress bar on stderr while it converts.
    Raises: ModelError if the file cannot be read or is of an architecture that transformers cannot convert.
    """
    path = gguf.resolve()
    stat = path.stat()
    key = hashlib.sha256(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{FORMAT}".encode()).hexdigest()[:16]
    folder = cache_folder() / "gguf" / f"{path.stem}-{key}"

    def make(partial: Path) -> None:
        with progress_steps(f"converting {path.name}", 3) as advance:
            convert(path, partial, advance)

    return made_once(folder, make)


def convert(gguf: Path, folder: Path, advance: Advance) -> None:
    """Write a .gguf file's tokenizer and weights, dequantized to bfloat16, as a Hugging Face folder.

    Args:
        advance: is told each of the three steps.
    Raises: ModelError if transformers cannot read the file, or only a part of what it says.
    """
    import torch  # noqa: PLC0415 (slow to import, and a converted model needs none of this)
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    source = str(gguf.parent)
    # transformers' own bars go to the stderr of the moment; ours keeps the real one
    with reading(f"'{gguf.name}' cannot be converted"), contextlib.redirect_stderr(io.StringIO()):
        facts = read_facts(gguf)
        advance("reading the tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf.name)
        advance("dequantizing the weights")
        model, loaded = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
        if loaded["missing_keys"]:  # transformers would go on with random numbers in their place
            raise ValueError(f"it is incomplete: {min(loaded['missing_keys'])} is missing")
        advance("writing the folder")
        apply(facts, model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


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
