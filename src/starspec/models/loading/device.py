"""The device that a model is to run on: is it there, what has to be set for it, what is dear there."""

from __future__ import annotations

import torch

from starspec.config import nearest
from starspec.errors import ConfigError


def is_accelerator(device: torch.device) -> bool:
    """Whether a launch costs more there than what a small one computes."""
    return device.type != "cpu"


def take_device(name: str) -> torch.device:
    """The device of this name.

    cuDNN's attention is switched off for this process. It makes a plan for each shape that it has not met, tens of
    milliseconds of the host's time, and keeps it; in ragged forwards the numbers of rows and slots change all the time.

    Raises: ConfigError if its name is unknown or it is not there.
    """
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ConfigError(f"device '{name}' is unknown{nearest(name, ['cpu', 'cuda', 'cuda:0'])}")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"device '{name}' is not there: torch {torch.__version__} sees no CUDA device")
    if index and int(index) >= torch.cuda.device_count():
        raise ConfigError(f"device '{name}' is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    return torch.device(name)
