"""Linears with quantized weights on a CPU, for drafts.

A draft may round freely: its tokens are only proposals, so quantization cannot change the output, only how often the
target accepts. It saves bytes, because a decoding step reads every weight once. It does not save arithmetic. So from a
few rows on another form is faster: one that multiplies integers (`DynamicInt8Linear`), or a dense one. Time of the
linears of Qwen2.5-0.5B on 2 cores (AVX-512 bf16, no AMX), relative to prepacked bfloat16:

    rows      1     2     4     8     16    256
    int8     0.63  0.84  0.90  1.6   2.1   3.0
    int4     0.38  0.58  0.73  1.2   1.7   2.7

Dense weights that are multiplied as float32 take twice the bytes, so quantization pays for more rows. The same relative
to those, without bf16 arithmetic (AMD Zen 3; last line: int4 with one thread):

    rows      1     2     4     5     8     12    16    32
    int8     0.40  0.41  0.43  0.57  0.62  0.84  1.0   1.4
    int4     0.28  0.35  0.32  0.53  0.48  0.70  0.85  1.3
    int4, 1  0.38  0.38  0.46  0.70  0.82  1.05  1.2   1.3
"""

from __future__ import annotations

import torch
from torch import Tensor

from starspec.models.linear.dense import num_dense_bytes
from starspec.models.linear.interface import PackedLinear, plus
from starspec.models.linear.quantize import INT4_GROUP, INT8_MAX, quantize_int4, quantize_int8

MIN_OUTPUTS = 16  # the int4 kernel takes outputs in blocks of 16
MIN_INPUTS = 16  # the int8 kernel reads past the end of rows that are not a multiple of 16
ALIGNMENT = 32  # bytes: the int8 kernel needs its input aligned so; torch's own memory is aligned to 64
NUM_EXACT = 32  # candidate tokens whose logits are recomputed from dense weights
# whatever the model's dtype: torch's loops for float32 and float16 are scalar and 20 times slower
KERNEL_DTYPE = torch.bfloat16
INNER_TILES = 1  # of the packed layout; the CPU kernel ignores it

TINY = torch.finfo(torch.float32).tiny  # keeps the scale of a row of zeros above 0
SHORT_MAX = 63  # largest weight code where the processor adds two products of an unsigned and a signed byte in 16 bits
ZERO = 128  # the kernels take inputs as unsigned codes; their loops for signed ones are ten times slower


def fits_int8(weight: Tensor) -> bool:
    """Whether the int8 kernel can handle a weight [N, K]."""
    return weight.shape[1] % MIN_INPUTS == 0


def fits_int4(weight: Tensor) -> bool:
    """Whether the int4 kernel can handle a weight [N, K]."""
    return weight.shape[0] % MIN_OUTPUTS == 0 and weight.shape[1] % INT4_GROUP == 0


class Int8Linear:
    """x [M, K] -> x W^T + b [M, N] on a CPU, with int8 weight codes by row.

    Args:
        weight: [N, K] on a CPU, K a multiple of 16.
        bias: [N], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._codes, self._scales = quantize_int8(weight.to(KERNEL_DTYPE).contiguous())
        self._bias = bias
        self.num_bytes = _num_bytes(self._codes, self._scales, bias)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.to(KERNEL_DTYPE)
        if rows.data_ptr() % ALIGNMENT:  # a view of bytes from the wire; the kernel would crash
            rows = rows.clone()
        out = torch._weight_int8pack_mm(rows, self._codes, self._scales)
        return plus(out.to(x.dtype), self._bias)


class Int4Linear:
    """x [M, K] -> x W^T + b [M, N] on a CPU, with int4 weight codes by groups of 32.

    Args:
        weight: [N, K] on a CPU, N a multiple of 16 and K of 32.
        bias: [N], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        codes, scales, zeros = quantize_int4(weight.to(KERNEL_DTYPE))
        self._codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), INNER_TILES)
        self._scales_and_zeros = torch.stack((scales.t(), zeros.t()), dim=-1).contiguous()  # [K / 32, N, 2]
        self._bias = bias
        self.num_bytes = _num_bytes(self._codes, self._scales_and_zeros, bias)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.to(KERNEL_DTYPE)
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self._codes, INT4_GROUP, self._scales_and_zeros)
        return plus(out.to(x.dtype), self._bias)


def can_multiply_int8(weight: Tensor) -> bool:
    """Whether oneDNN has kernels for a weight's integer product on this machine."""
    has_kernels = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return weight.device.type == "cpu" and has_kernels and torch._C._has_mkldnn


def largest_weight_code() -> int:
    """The largest weight code with which this processor's sums are exact."""
    return INT8_MAX if torch.cpu._is_vnni_supported() else SHORT_MAX


class DynamicInt8Linear:
    """x [M, K] -> x W^T + b [M, N] on a CPU by an integer product: int8 weights by row, and input rows rounded to int8.

    An integer product reads a quarter of the bytes of a float32 one. It takes half the time, or less where the
    processor has instructions for it. So it suits forwards of many rows, above all prefills, where weights that are
    only stored as integers cost extra arithmetic. Integer sums are exact: a row's result does not depend on the other
    rows.

    Args:
        weight: [N, K] on a CPU; copied, so it may be freed afterwards.
        bias: [N], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        codes, scales = quantize_int8(weight.to(torch.bfloat16), largest_weight_code())
        self._codes = torch.ops.onednn.qlinear_prepack(codes, None)
        self._scales = scales.float().div_(INT8_MAX)  # of weight and input together, without the row's largest value
        self._zeros = torch.zeros(len(codes), dtype=torch.int64)
        # adding this before truncation rounds to the nearest code
        self._offset = torch.tensor(ZERO + 0.5, dtype=torch.float32)
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


class RefinedHead:
    """A quantized output layer that recomputes the logits of its best candidates from the dense weight.

    Rounding the output layer costs a draft most of its agreement with itself: SmolLM2 with int4 weights picks the token
    of its bf16 form in 93% of positions, and in 99% with this class. Yet only the few best logits matter. Reading 32
    more rows of the weight costs almost nothing, and a tied weight is in memory anyway.

    Args:
        rough: the quantized layer.
        weight: [V, K] dense; kept.
        bias: [V], or None.
    """

    def __init__(self, rough: PackedLinear, weight: Tensor, bias: Tensor | None) -> None:
        self._rough = rough
        self._weight = weight.detach()
        self._bias = bias
        self.num_bytes = rough.num_bytes + NUM_EXACT * weight.shape[1] * weight.element_size()

    def __call__(self, x: Tensor) -> Tensor:
        logits = self._rough(x)  # [M, V]
        best = logits.topk(min(NUM_EXACT, logits.shape[1]), sorted=False).indices  # [M, 32]
        exact = torch.bmm(self._weight[best], x.unsqueeze(-1)).squeeze(-1)
        if self._bias is not None:
            exact = exact + self._bias[best]
        return logits.scatter_(1, best, exact)


def _num_bytes(*tensors: Tensor | None) -> int:
    return sum(each.numel() * each.element_size() for each in tensors if each is not None)
