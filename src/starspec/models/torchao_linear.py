"""Weight-only quantized linears on CUDA: torchao's, one module a linear."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor, nn

from starspec.errors import ConfigError
from starspec.models.foreign import first_line
from starspec.models.prepack import num_dense_bytes

INT4_GROUP = 32


class TorchaoLinear:
    """x [M, K] -> x W^T + b [M, N] with int8 or int4 weights.

    Args:
        quantization: "int8" or "int4"; int4 needs bfloat16.
        weight: [N, K] on a CUDA device.
        bias: [N], or None.
    Raises: ConfigError if torchao is not installed or does not take this weight.
    """

    def __init__(self, quantization: str, weight: Tensor, bias: Tensor | None) -> None:
        out_features, in_features = weight.shape
        # on the meta device no second copy of the weight is allocated first
        linear = nn.Linear(in_features, out_features, bias=bias is not None, device="meta", dtype=weight.dtype)
        linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
        _quantize(linear, quantization)
        self._linear = linear.requires_grad_(requires_grad=False)
        bits = {"int8": 8, "int4": 4 + 32 // INT4_GROUP}[quantization]
        self.num_bytes = weight.numel() * bits // 8 + (0 if bias is None else num_dense_bytes(bias, None))

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._linear(x)
        return out


def _quantize(linear: nn.Linear, quantization: str) -> None:
    torchao = _import_torchao()
    try:
        if quantization == "int8":
            how: Any = torchao.Int8WeightOnlyConfig()
        else:
            how = torchao.Int4WeightOnlyConfig(group_size=INT4_GROUP, int4_packing_format="tile_packed_to_4d")
        torchao.quantize_(linear, how)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        shape = tuple(linear.weight.shape)
        raise ConfigError(
            f"torchao cannot quantize a {linear.weight.dtype} weight {shape} to {quantization}: {first_line(error)}"
        ) from error


def _import_torchao() -> Any:
    try:
        return importlib.import_module("torchao.quantization")
    except ImportError as error:
        raise ConfigError(
            "quantized weights on CUDA need torchao; install starspec[cuda], or use --draft-quantization none"
        ) from error
