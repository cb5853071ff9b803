"""Dense linears on a CPU with weights laid out once for oneDNN, as Inductor's freezing does it.

Measured for 1-16 rows, this is 1.4x to 2x faster than `F.linear` in bfloat16, and 2x to 4x in float32. In both, from 2
rows on, the result of a row does not depend on how many rows are computed together (`models/numerics/probe.py` proves
it at load).

On a processor without bf16 arithmetic, bfloat16 that is multiplied as float32 takes 1.2x the time of `F.linear` for 2
rows, 0.9x for 3, 0.6x for 5, 0.3x for 16 and 0.14x for 256 (AMD Zen 3, 2 cores, weights of 14 million numbers).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class PrepackedLinear:
    """x [..., K] -> x W^T + b [..., N] with W reordered for oneDNN.

    If the processor has no arithmetic for the weight's dtype, the weight is kept and multiplied as float32. This takes
    twice the bytes for one row, but further rows cost little; converting at each use would cost every row the same
    again. Sums are float32 in both cases, and results are rounded to the dtype of the input.

    Args:
        weight: [N, K] on a CPU; copied, so it may be freed afterwards.
        bias: [N], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._dtype = weight.dtype if is_native(weight.dtype) else torch.float32
        packed = weight.detach().to(self._dtype).contiguous()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(packed, None)
        self._bias = None if bias is None else bias.detach().to(self._dtype)
        self.num_bytes = num_dense_bytes(packed, self._bias)

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.ops.mkldnn._linear_pointwise(x.to(self._dtype), self._weight, self._bias, "none", [], "")
        return out.to(x.dtype)  # type: ignore[no-any-return]


class PlainLinear:
    """x [..., K] -> x W^T + b [..., N] by `F.linear`, for other devices and where oneDNN lacks the dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()
        self.num_bytes = num_dense_bytes(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


def pack_dense(weight: Tensor, bias: Tensor | None) -> PrepackedLinear | PlainLinear:
    """The fastest dense linear for the weight's device and dtype."""
    kind = PrepackedLinear if can_prepack(weight) else PlainLinear
    return kind(weight, bias)


def is_dense(linear: object) -> bool:
    """Whether a linear still has the weights that it was made from, unquantized."""
    return isinstance(linear, PrepackedLinear | PlainLinear)


def can_prepack(weight: Tensor) -> bool:
    """Whether oneDNN can multiply this weight on this machine, possibly as float32."""
    is_exact_in_float32 = weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return weight.device.type == "cpu" and is_exact_in_float32 and torch._C._has_mkldnn


def is_native(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for this dtype on this processor."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def num_dense_bytes(weight: Tensor, bias: Tensor | None) -> int:
    """Bytes that a decoding step reads of a dense linear."""
    return sum(each.numel() * each.element_size() for each in (weight, bias) if each is not None)
