"""From a model's name to a folder on this disk. A name is a folder, a .gguf file, or a Hugging Face Hub id."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from starspec.errors import ModelError
from starspec.models.loading.transformers_calls import first_line
from starspec.quoting import readable

SYNTHETIC_PREFIX = "synthetic:"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-]+")  # owner/name, or one word such as `gpt2`
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")  # neither pickled weights nor code

OTHER_FORMATS = ("consolidated*", "original/*")  # the same weights again, in the format of their authors' own code


def is_synthetic(model: str) -> bool:
    """Whether a model's name asks for a synthetic model, which has no weights."""
    return model.startswith(SYNTHETIC_PREFIX)


def locate(model: str, also: tuple[str, ...] = ()) -> Path:
    """The Hugging Face folder of a model.

    Args:
        model: a folder, a .gguf file, or a Hugging Face Hub id.
        also: patterns of files to download besides `HUB_FILES`.
    Effects: converts a .gguf file into the local cache the first time; downloads a Hub id unless it is cached or
        HF_HUB_OFFLINE is set.
    Raises: ModelError that says what is missing, with the nearest existing name if there is one.
    """
    path = model_path(model)
    try:
        is_file = path.is_file()
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise ModelError(f"folder '{model}' is not a model: it has no config.json")
            return path
        if not is_file and _looks_like_path(model):
            raise ModelError(f"there is no model at '{model}'{_nearest_sibling(path)}")
    except OSError as error:  # a name that is too long, or a folder of others
        raise ModelError(f"'{model}' cannot be read: {error.strerror}") from error
    return _from_file(path) if is_file else _from_hub(model, HUB_FILES + also)


def model_path(model: str) -> Path:
    """A model's name as a path, whether there is one or not. Raises: ModelError if `~user` names no user."""
    try:
        return Path(model).expanduser()
    except RuntimeError as error:
        raise ModelError(f"there is no model at '{model}': there is no such user's home") from error


def is_on_disk(model: str) -> bool:
    """Whether a name is that of a folder or a file that this process may see."""
    return os.path.exists(model_path(model))  # noqa: PTH110 (Path.exists raises for names that are too long)


def names_a_file(model: str) -> bool:
    """Whether a name is that of a file, as a .gguf is."""
    return os.path.isfile(model_path(model))  # noqa: PTH113 (as above)


def folder_name(model: str) -> str:
    """The last part of a path (which may be `.`), or the part of a Hub id behind the owner; made readable."""
    path = model_path(model)
    return readable(path.resolve().name if path.name in ("", "..") else path.name)


def announced_name(model: str) -> str:
    """What a target calls the model that it serves: its folder's name, or its id."""
    return folder_name(model) if is_on_disk(model) else model


def _from_file(path: Path) -> Path:
    if path.suffix != ".gguf":
        raise ModelError(f"'{path}' is a file but not a .gguf; give the folder that holds config.json")
    from starspec.models.loading.gguf import converted_folder  # noqa: PLC0415 (draws in transformers)

    return converted_folder(path)


def _looks_like_path(model: str) -> bool:
    """Whether a name that is not on this disk was meant as a path. `models/x` is one if `models` is a folder here."""
    is_explicit = model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf")
    return is_explicit or not HUB_ID.fullmatch(model) or ("/" in model and Path(model).parent.is_dir())


def _nearest_sibling(path: Path) -> str:
    if not path.parent.is_dir():
        return f": '{path.parent}' is not a folder"
    names = [each.name for each in path.parent.iterdir() if each.is_dir() or each.suffix == ".gguf"]
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"; did you mean '{path.parent / close[0]}'?" if close else ""


def _from_hub(model: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415 (slow to import)

    try:
        return Path(snapshot_download(model, allow_patterns=list(patterns), ignore_patterns=list(OTHER_FORMATS)))
    except Exception as error:  # its errors have a dozen unrelated types, network errors included
        if constants.HF_HUB_OFFLINE:
            why = "it is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids downloading it"
        else:
            why = f"the Hugging Face Hub could not provide it: {first_line(error)}"
        raise ModelError(f"'{model}' is not a folder here, and {why}{_nearest_sibling(Path(model))}") from error
