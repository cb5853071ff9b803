"""Linears with quantized weights on CUDA, for drafts: torchao's int4, and int8 by a product that torch compiles.

Microseconds of the four products of a layer of Qwen2.5 7B on an H200 (`benchmarks/results/cuda-linears.json`):

    rows                    1     2     4     8
    bfloat16              132   132   134   134
    int4, groups of 64     99   110   135   210
    int8                  105   738   739   740

So quantized weights help only forwards of one or two rows: the int8 product for two rows is not compiled, and reads a
bfloat16 copy that it makes. Only large linears gain. For the one with 17 million weights, int4 takes the same time as
bfloat16, and int8 twice as long.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starspec.errors import ConfigError
from starspec.models.linear.dense import num_dense_bytes
from starspec.models.linear.quantize import quantize_int8
from starspec.models.loading.transformers_calls import first_line

INT4_GROUP: Final = 64
MAX_INT4_ROWS: Final = 2  # for more rows dense weights are faster
MAX_INT8_ROWS: Final = 1
MAX_SHAPES: Final = 64
KERNEL_DTYPE: Final = torch.bfloat16  # whatever the model's dtype
INT4_BITS: Final = 4 + 32 / INT4_GROUP  # for each weight; scale and zero of a group take 16 bits each


def fits_int4(weight: Tensor) -> bool:
    """Whether the int4 kernel can handle a weight [N, K]."""
    return weight.shape[1] % INT4_GROUP == 0


class TorchaoInt4Linear:
    """x [M, K] -> x W^T + b [M, N] with int4 weight codes by groups of 64.

    Args:
        weight: [N, K] on a CUDA device, K a multiple of 64.
        bias: [N], or None.
    Raises: ConfigError if torchao is not installed or cannot handle this weight.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        out_features, in_features = weight.shape
        # on the meta device, so that no second copy of the weight is allocated first
        linear = nn.Linear(in_features, out_features, bias=bias is not None, device="meta", dtype=KERNEL_DTYPE)
        linear.weight = nn.Parameter(weight.detach().to(KERNEL_DTYPE), requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach().to(KERNEL_DTYPE), requires_grad=False)
        _quantize(linear)
        self._linear = linear.requires_grad_(requires_grad=False)
        self.num_bytes = int(weight.numel() * INT4_BITS / 8) + (0 if bias is None else num_dense_bytes(bias, None))

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._linear(x.to(KERNEL_DTYPE))
        return out.to(x.dtype)


class CompiledInt8Linear:
    """x [M, K] -> x W^T + b [M, N] with int8 weight codes by row.

    One row uses a compiled kernel that reads only the codes.

    Args:
        weight: [N, K].
        bias: [N], or None.
    Raises: ConfigError if torch cannot compile the kernel.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._codes, self._scales = quantize_int8(weight)
        self._bias = bias
        if weight.is_cuda:  # compile now, because no request should wait for it
            self._compile(weight.new_zeros(1, weight.shape[1]))
        self.num_bytes = self._codes.numel() + num_dense_bytes(self._scales, bias)

    def __call__(self, x: Tensor) -> Tensor:
        multiply = product_of_a_row() if x.shape[0] == 1 else _product
        return multiply(x, self._codes, self._scales, self._bias)

    @torch.inference_mode()
    def _compile(self, x: Tensor) -> None:
        try:
            self(x)
        except (ImportError, OSError, RuntimeError) as error:
            raise ConfigError(
                f"torch cannot compile a kernel for int8 weights here: {first_line(error)}; it needs a C compiler; "
                "use --draft-quantization int4 or none"
            ) from error


def _product(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    out = F.linear(x, codes.to(x.dtype)) * scales
    return out if bias is None else out + bias


@lru_cache(maxsize=1)
def product_of_a_row() -> Callable[..., Tensor]:
    """The product of one row with int8 codes, compiled once for each shape.

    M is static: otherwise torch would not compile a matrix-vector product.
    """
    import torch._dynamo.config as dynamo  # noqa: PLC0415 (a second)

    # beyond this limit torch would run further shapes uncompiled; a model has about five
    dynamo.recompile_limit = max(MAX_SHAPES, dynamo.recompile_limit)
    found: Callable[..., Tensor] = torch.compile(_product, dynamic=False)
    return found


def _quantize(linear: nn.Linear) -> None:
    torchao = _import_torchao()
    try:
        how = torchao.Int4WeightOnlyConfig(group_size=INT4_GROUP, int4_packing_format="tile_packed_to_4d")
        torchao.quantize_(linear, how)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        shape = tuple(linear.weight.shape)
        raise ConfigError(
            f"torchao cannot quantize a {linear.weight.dtype} weight {shape} to int4: {first_line(error)}"
        ) from error


def _import_torchao() -> Any:
    try:
        return importlib.import_module("torchao.quantization")
    except ImportError as error:
        raise ConfigError(
            "int4 weights on CUDA need torchao; install starspec[cuda], or use --draft-quantization int8 or none"
        ) from error
