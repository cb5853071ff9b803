"""The device that a model runs on: whether it exists, and which process settings it needs."""

from __future__ import annotations

import torch

from starspec.config.model import check_device
from starspec.errors import ConfigError


def is_accelerator(device: torch.device) -> bool:
    """Whether this device is one where launching a small kernel takes longer than running it."""
    return device.type != "cpu"


def take_device(name: str) -> torch.device:
    """The device with this name.

    On CUDA, cuDNN's attention is switched off for this process. It plans for each new shape, which takes tens of
    milliseconds on the host, and ragged forwards have new numbers of rows and slots all the time.

    Raises: ConfigError if the name is unknown or the device does not exist.
    """
    check_device(name)
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"device '{name}' is not there: torch {torch.__version__} sees no CUDA device")
    if index and int(index) >= torch.cuda.device_count():
        raise ConfigError(f"device '{name}' is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    return torch.device(name)
