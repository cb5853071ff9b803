"""From the name of a model to a folder on this disk: a folder, a .gguf file, or a hub id."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from starspec.errors import ModelError
from starspec.models.loading.transformers_calls import first_line

SYNTHETIC_PREFIX = "synthetic:"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-]+")  # owner/name, or one word as in `gpt2`
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")  # no pickled weights, no code

OTHER_FORMATS = ("consolidated*", "original/*")  # the same weights once more, as their authors' own code reads them


def is_synthetic(model: str) -> bool:
    """Whether a model's name asks for a synthetic accelerator, one without weights."""
    return model.startswith(SYNTHETIC_PREFIX)


def locate(model: str, also: tuple[str, ...] = ()) -> Path:
    """The Hugging Face folder of a model.

    Args:
        also: patterns of files to download besides `HUB_FILES`.
    Effects: converts a .gguf file into the local cache the first time; downloads a hub id unless it is cached or
        HF_HUB_OFFLINE is set.
    Raises: ModelError saying what is missing, with the nearest name beside it if there is one.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return _from_file(path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"folder '{model}' is no model: it has no config.json")
        return path
    if _looks_like_path(model):
        raise ModelError(f"there is no model at '{model}'{_nearest_sibling(path)}")
    return _from_hub(model, HUB_FILES + also)


def folder_name(model: str) -> str:
    """The last part of a path, which may be `.`; of a hub id, what follows the owner."""
    path = Path(model).expanduser()
    return path.resolve().name if path.name in ("", "..") else path.name


def _from_file(path: Path) -> Path:
    if path.suffix != ".gguf":
        raise ModelError(f"'{path}' is a file but no .gguf; give the folder that holds config.json")
    from starspec.models.loading.gguf import converted_folder  # noqa: PLC0415 (draws in transformers)

    return converted_folder(path)


def _looks_like_path(model: str) -> bool:
    """Whether a name that is not on this disk was meant to be: `models/x` is a path if `models` is a folder here."""
    is_explicit = model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf")
    return is_explicit or not HUB_ID.fullmatch(model) or ("/" in model and Path(model).parent.is_dir())


def _nearest_sibling(path: Path) -> str:
    if not path.parent.is_dir():
        return f": '{path.parent}' is no folder"
    names = [each.name for each in path.parent.iterdir() if each.is_dir() or each.suffix == ".gguf"]
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
    return f"; did you mean '{path.parent / close[0]}'?" if close else ""


def _from_hub(model: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import constants, snapshot_download  # noqa: PLC0415 (slow to import)

    try:
        return Path(snapshot_download(model, allow_patterns=list(patterns), ignore_patterns=list(OTHER_FORMATS)))
    except Exception as error:  # its errors are of a dozen unrelated types, network ones included
        if constants.HF_HUB_OFFLINE:
            why = "it is not in the local hub cache, and HF_HUB_OFFLINE forbids downloading it"
        else:
            why = f"the hub could not provide it: {first_line(error)}"
        raise ModelError(f"'{model}' is no folder here, and {why}{_nearest_sibling(Path(model))}") from error
