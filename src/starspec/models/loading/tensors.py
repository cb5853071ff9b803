"""The safetensors files of a model's folder: which file holds which tensor, and whether all numbers are finite."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from starspec.errors import ModelError

# errors for a folder of tensors that is incomplete, truncated or in another format
UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)


def tensor_files(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, for one file or for several with an index. Raises: one of UNREADABLE."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
        return dict(weight_map)
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        return dict.fromkeys(tensors.keys(), "model.safetensors")


def check_finite(model: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Check every number of the tensors; each is read once.

    Args:
        model: name for the error message.
        tensors: name and floating-point tensor.
    Raises: ModelError that names the first tensor with a number that is not finite.
    """
    for name, tensor in tensors:
        if tensor.numel() and not all(math.isfinite(each) for each in tensor.detach().aminmax()):
            raise ModelError(f"'{model}' is corrupt: {name} holds numbers that are NaN or infinite")
