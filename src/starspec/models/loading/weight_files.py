"""The .safetensors files of a model's folder, as far as they are checked without torch: are they there, and whole?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

from starspec.errors import ModelError

LFS_POINTER: Final = b"version https://git-lfs"
ONLY_FILE: Final = "model.safetensors"  # of weights that need no index
MAX_HEAD_BYTES: Final = 100 * 2**20  # as the library that reads such files has it
NO_HEAD: Final = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


def check_weights(model: str, folder: Path) -> None:
    """Check that the weights of a model are there, and as `check_whole`. Raises: ModelError."""
    names = _names_of(folder)
    for name in names:
        if not (folder / name).exists():
            raise ModelError(f"the weights of '{model}' cannot be read: there is no file {name} in its folder")
    check_whole(model, [folder / name for name in names])


def check_whole(model: str, files: Sequence[Path]) -> None:
    """Check that .safetensors files can be read, are what they are named for, and that no download was cut short.

    What their heads say passes, if it is JSON: whoever reads the tensors says what is wrong with it.

    Raises: ModelError.
    """
    check_weight_files(model, files)
    for file in files:
        try:
            missing = _num_missing(file)
        except ValueError as error:
            raise ModelError(f"the weights of '{model}' cannot be read: '{file}' {error}; get it again") from error
        if missing > 0:
            raise ModelError(f"the weights of '{model}' are cut short: '{file}' lacks {missing} bytes; get it again")


def check_weight_files(model: str, files: Iterable[Path]) -> None:
    """Check that files can be read and are what they are named for: safetensors calls a file that may not be read
    missing, and the pointer of a clone without git lfs a header that is too large.

    Raises: ModelError.
    """
    for file in files:
        try:
            with file.open("rb") as opened:
                beginning = opened.read(len(LFS_POINTER))
        except OSError as error:
            raise ModelError(f"the weights of '{model}' cannot be read: {file}: {error.strerror}") from error
        if beginning == LFS_POINTER:
            raise ModelError(f"'{file}' is a pointer of Git LFS, not the weights: get them with git lfs pull")


def declared_weights(folder: Path) -> int:
    """Numbers in all .safetensors files of a folder; 0 if one of them is not what it is called: loading says why."""
    try:
        heads = [_head_of(file) for file in folder.glob("*.safetensors")]
        return sum(prod(each["shape"]) for head in heads for each in head.values())
    except (OSError, *NO_HEAD):
        return 0


def _names_of(folder: Path) -> list[str]:
    """The files that a folder's index names, or the only one if no index can be read, or if it names none."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
        return sorted({Path(name).name for name in index["weight_map"].values()}) or [ONLY_FILE]
    except (OSError, *NO_HEAD):
        return [ONLY_FILE]


def _num_missing(file: Path) -> int:
    """Bytes that a file announces and does not have; below 1 if it has all, or if its head says something else.

    Raises: ValueError that says what is wrong with the file, if it has no head.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        begins = 8 + int.from_bytes(opened.read(8), "little")
    if size < 8 or size < begins <= MAX_HEAD_BYTES:
        raise ValueError("is cut short, within its head")
    try:
        announced = max((each["data_offsets"][1] for each in _head_of(file).values()), default=0)
        return int(begins + announced - size)
    except ValueError as error:
        raise ValueError("is not a .safetensors file") from error
    except (TypeError, AttributeError, LookupError, RecursionError):
        return 0


def _head_of(file: Path) -> dict[str, Any]:
    """Tensor name -> its type, shape and place in a file. Raises: OSError, or one of NO_HEAD."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > MAX_HEAD_BYTES:
            raise ValueError(f"{file} has a head of {size} bytes")
        head: dict[str, Any] = json.loads(opened.read(size))
    return {name: each for name, each in head.items() if name != "__metadata__"}
