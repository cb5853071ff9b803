"""The files of an EAGLE head: config.json, and model.safetensors or pytorch_model.bin."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from starspec.errors import ModelError
from starspec.models.loading.foreign import first_line
from starspec.models.loading.locate import locate

PICKLED: Final = "pytorch_model.bin"


def read_files(head: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a head, as they are stored.

    Args:
        head: a folder, or a hub id.
    Effects: downloads a hub id unless it is cached (see `locate`).
    Raises: ModelError if a file is missing or cannot be read. No code of the checkpoint is run.
    """
    if Path(head).expanduser().is_file():
        raise ModelError(f"'{head}' is a file; give the folder that holds the config.json of the EAGLE head")
    folder = locate(head)
    return _read_config(head, folder), _read_tensors(head, folder)


def _read_config(head: str, folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"'{head}' is no EAGLE head: it has no config.json")
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"the config.json of '{head}' cannot be read: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise ModelError(f"the config.json of '{head}' is no JSON object")
    return config


def _read_tensors(head: str, folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        files = [locate(head, (PICKLED,)) / PICKLED]
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not file.is_file():
            raise ModelError(f"'{head}' has no weights: there is neither model.safetensors nor {PICKLED}")
        try:
            loaded = _unpickled(file) if file.name == PICKLED else load_file(file)
        except Exception as error:  # corrupt files raise nearly every type there is
            raise ModelError(f"the weights of '{head}' cannot be read: {file.name}: {first_line(error)}") from error
        tensors |= loaded
    return tensors


def _unpickled(file: Path) -> dict[str, Tensor]:
    loaded = torch.load(file, map_location="cpu", weights_only=True)  # of all pickles only those of plain tensors
    if not isinstance(loaded, dict) or not all(isinstance(each, Tensor) for each in loaded.values()):
        raise ValueError("it holds something else than named tensors")
    return loaded


def write_files(folder: Path, tensors: Mapping[str, Tensor], jsons: Mapping[str, Mapping[str, object]]) -> None:
    """Write a head, config.json last: whoever finds that finds a whole head.

    Args:
        jsons: file name -> what it holds.
    Effects: makes the folder; replaces files of the same name in it, each at once, and leaves the others.
    """
    contents = {"model.safetensors": save(dict(tensors), metadata={"format": "pt"})}
    for name in sorted(jsons, key=lambda name: name == "config.json"):
        contents[name] = (json.dumps(jsons[name], indent=2) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    partials = {name: folder / f".{name}.{os.getpid()}" for name in contents}
    try:
        for name, content in contents.items():
            partials[name].write_bytes(content)
        for name, partial in partials.items():
            partial.replace(folder / name)
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)
