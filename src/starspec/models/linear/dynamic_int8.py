"""Linears that multiply integers, for drafts: int8 weights by row, and rows rounded to int8 as they come in.

An integer product takes a quarter of the bytes of a float32 one and half of the time or, where the processor has
instructions for it, less. So it serves forwards of many rows, prompts above all, where weights that are only stored as
integers (`weight_only.py`) cost their arithmetic. Integers are summed exactly: a row's result does not depend on the
rows beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from starspec.models.linear.interface import plus
from starspec.models.linear.prepack import num_dense_bytes
from starspec.models.linear.quantize import INT8_MAX, quantize_int8

TINY = torch.finfo(torch.float32).tiny  # of a row of zeros
SHORT_MAX = 63  # code of a weight where the processor adds two products of an unsigned and a signed byte in 16 bits
ZERO = 128  # the kernels take inputs as unsigned codes; for signed ones they have loops ten times slower


def can_multiply_int8(weight: Tensor) -> bool:
    """Whether oneDNN has kernels for a weight's integer product on this machine."""
    has_kernels = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return weight.device.type == "cpu" and has_kernels and torch._C._has_mkldnn


def largest_weight_code() -> int:
    """Up to which this processor's sums are exact."""
    return INT8_MAX if torch.cpu._is_vnni_supported() else SHORT_MAX


class DynamicInt8Linear:
    """x [M, K] -> x W^T + b [M, N] on CPU.

    Args:
        weight: [N, K] on CPU; it is copied, and may be freed after.
        bias: [N], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        codes, scales = quantize_int8(weight.to(torch.bfloat16), largest_weight_code())
        self._codes = torch.ops.onednn.qlinear_prepack(codes, None)
        self._scales = scales.float().div_(INT8_MAX)  # of weight and input, but for a row's largest value
        self._zeros = torch.zeros(len(codes), dtype=torch.int64)
        self._offset = torch.tensor(ZERO + 0.5, dtype=torch.float32)  # what is cut off then is rounded
        self._bias = bias
        self.num_bytes = codes.numel() + num_dense_bytes(self._scales, bias)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.float()
        largest = torch.linalg.vector_norm(rows, torch.inf, dim=1, keepdim=True).add_(TINY)  # [M, 1]
        codes = torch.addcdiv(self._offset, rows, largest, value=INT8_MAX).to(torch.uint8)
        out = torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, ZERO, self._codes, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return plus(out.mul_(largest).to(x.dtype), self._bias)
