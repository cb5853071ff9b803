"""The files of a tokenizer, as far as they are checked without transformers: can they be read, and are they whole?"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from starspec.errors import ModelError
from starspec.models.loading.weight_files import LFS_POINTER

TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
OTHER_VOCABULARIES: Final = ("*.model", "*.model.v*", "*.tiktoken", "tekken.json")  # of fewer families


def check_tokenizer_files(model: str, folder: Path) -> None:
    """Check that what a model's tokenizer is read from is not a stub, nor cut short.

    A folder without any passes, as those of heads have none. A file that is not used may be a stub: if there is a
    tokenizer.json, transformers reads no other vocabulary; otherwise one good file is enough.

    Raises: ModelError.
    """
    there = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
    read = [file for file in there if file.name == "tokenizer.json"] or there
    settings = folder / "tokenizer_config.json"
    for files in (read, [settings] if settings.exists() else []):
        faults = [_fault_of(file) for file in files]
        if faults and None not in faults:
            raise ModelError(f"'{model}' has no tokenizer that can be read: {faults[0]}")


def check_has_tokenizer(model: str, folder: Path) -> None:
    """Check that there is a file that a tokenizer could be read from. Raises: ModelError."""
    if not any(next(folder.glob(name), None) for name in (*TOKENIZER_FILES, *OTHER_VOCABULARIES)):
        missing = f"there is none of {', '.join(TOKENIZER_FILES)} in its folder"
        raise ModelError(f"'{model}' has no tokenizer that can be read: {missing}")


def _fault_of(file: Path) -> str | None:
    """Why nobody can read a file; None if it may be good. Building JSON is slow, so its syntax alone is checked."""
    try:
        content = file.read_bytes()
        if content.startswith(LFS_POINTER):
            return f"'{file}' is a pointer of Git LFS, not the file itself: get it with git lfs pull"
        if file.suffix == ".json":
            msgspec.json.decode(content, type=msgspec.Raw)
    except OSError as error:
        return f"'{file}' cannot be read: {error.strerror}"
    except msgspec.DecodeError as error:
        return f"'{file}' is not whole: {error}"
    return None
