"""Reading the files of an EAGLE head: config.json, and model.safetensors or pytorch_model.bin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor

from starspec.errors import ModelError
from starspec.json_text import parse_json
from starspec.models.loading.locate import locate, names_a_file
from starspec.models.loading.transformers_calls import first_line
from starspec.models.loading.weight_files import check_weight_files

PICKLED: Final = "pytorch_model.bin"


def read_files(head: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a head, as they are stored.

    Args:
        head: a folder, or a Hub id.
    Effects: downloads a Hub id unless it is cached (see `locate`).
    Raises: ModelError if a file is missing or cannot be read. No code of the checkpoint is run.
    """
    if names_a_file(head):
        raise ModelError(f"'{head}' is a file; give the folder that holds the config.json of the EAGLE head")
    folder = locate(head)
    return _read_config(head, folder), _read_tensors(head, folder)


def _read_config(head: str, folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"'{head}' is not an EAGLE head: it has no config.json")
    try:
        config = parse_json(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"the config.json of '{head}' cannot be read: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise ModelError(f"the config.json of '{head}' is not a JSON object")
    return config


def _read_tensors(head: str, folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        files = [locate(head, (PICKLED,)) / PICKLED]
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not file.is_file():
            raise ModelError(f"'{head}' has no weights: there is neither model.safetensors nor {PICKLED}")
        check_weight_files(head, [file])
        try:
            loaded = _unpickled(file) if file.name == PICKLED else load_file(file)
        except Exception as error:  # corrupt files raise nearly every type there is
            raise ModelError(f"the weights of '{head}' cannot be read: {file.name}: {first_line(error)}") from error
        tensors |= loaded
    return tensors


def _unpickled(file: Path) -> dict[str, Tensor]:
    loaded = torch.load(file, map_location="cpu", weights_only=True)  # accepts only pickles of plain tensors
    if not isinstance(loaded, dict) or not all(isinstance(each, Tensor) for each in loaded.values()):
        raise ValueError("it holds something other than named tensors")
    return loaded
