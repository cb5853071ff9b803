"""Rounding weights: int8 by row, int4 by groups of 32. Pure functions; `weight_only.py` multiplies with them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

INT4_GROUP = 32  # weights that share a scale and a zero: 5 bits a weight in all
INT4_LEVELS = 16
INT8_MAX = 127
SHRINKS = (1.0, 0.92, 0.84, 0.76)  # of a group's range, tried in turn: clipping an outlier can serve the others
CHUNK_ELEMENTS = 1 << 19  # rounded at once: the intermediates stay in the processor's cache
TINY = 1e-12  # stands for the scale of a group whose weights are all equal


class Int8Rows(NamedTuple):
    """weight[n, k] ~ codes[n, k] * scales[n]."""

    codes: Tensor  # [N, K] int8, -127..127
    scales: Tensor  # [N] in the weight's dtype

    def dequantized(self) -> Tensor:
        """The weight that the codes stand for, [N, K] float32."""
        return self.codes.float() * self.scales.float().unsqueeze(1)


class Int4Groups(NamedTuple):
    """weight[n, k] ~ (codes[n, k] - 8) * scales[n, k // 32] + zeros[n, k // 32]."""

    codes: Tensor  # [N, K] uint8, 0..15
    scales: Tensor  # [N, K / 32] in the weight's dtype
    zeros: Tensor  # [N, K / 32] in the weight's dtype

    def dequantized(self) -> Tensor:
        """The weight that the codes stand for, [N, K] float32."""
        centred = _in_groups(self.codes.float()) - INT4_LEVELS / 2
        return (centred * self.scales.float().unsqueeze(-1) + self.zeros.float().unsqueeze(-1)).flatten(1)


def quantize_int8(weight: Tensor) -> Int8Rows:
    """Symmetric 8-bit codes by row.

    Args:
        weight: [N, K].
    """
    weight = weight.detach()
    scales = (weight.float().abs().amax(1) / INT8_MAX).clamp_min(TINY).to(weight.dtype)
    codes = (weight.float() / scales.float().unsqueeze(1)).round_().clamp_(-INT8_MAX, INT8_MAX)
    return Int8Rows(codes.to(torch.int8), scales)


def quantize_int4(weight: Tensor) -> Int4Groups:
    """Asymmetric 4-bit codes by group, the best of a few ranges after a least-squares fit of scale and zero.

    Args:
        weight: [N, K], K a multiple of 32.
    """
    num_rows = max(1, CHUNK_ELEMENTS // weight.shape[1])
    parts = [_quantize_int4_rows(rows) for rows in torch.split(weight.detach(), num_rows)]
    return Int4Groups(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _quantize_int4_rows(weight: Tensor) -> Int4Groups:
    groups = _in_groups(weight.float())
    low, high = groups.aminmax(dim=-1, keepdim=True)
    fits = [_fit(groups, low, high, shrink) for shrink in SHRINKS]
    gain, scale, zero = (torch.stack(each) for each in zip(*fits, strict=True))
    best = gain.argmax(0, keepdim=True)
    # rounded before the codes are chosen, so that they make up for it
    scale, zero = (each.gather(0, best)[0].to(weight.dtype) for each in (scale, zero))
    codes = _codes(groups, scale.float(), zero.float())
    return Int4Groups(codes.to(torch.uint8).flatten(1), scale.squeeze(-1), zero.squeeze(-1))


def _fit(groups: Tensor, low: Tensor, high: Tensor, shrink: float) -> tuple[Tensor, Tensor, Tensor]:
    """The least-squares scale and zero for the codes of a range shrunk about its middle.

    Returns: gain (how much of the group's squared deviation they explain), scale and zero, each [N, K / 32, 1].
    """
    middle, reach = (low + high) / 2, (high - low) / 2 * shrink
    scale = (2 * reach / (INT4_LEVELS - 1)).clamp_min_(TINY)
    codes = _codes(groups, scale, middle - reach + INT4_LEVELS / 2 * scale)
    mean_code = codes.mean(-1, keepdim=True)
    codes -= mean_code
    along = (codes * groups).sum(-1, keepdim=True)
    spread = codes.square_().sum(-1, keepdim=True).clamp_min_(TINY)
    scale = (along / spread).clamp_min_(TINY)
    return along * scale, scale, groups.mean(-1, keepdim=True) - scale * (mean_code - INT4_LEVELS / 2)


def _codes(groups: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (groups - zero).div_(scale).add_(INT4_LEVELS / 2).round_().clamp_(0, INT4_LEVELS - 1)


def _in_groups(weight: Tensor) -> Tensor:
    """[N, K] -> [N, K / 32, 32]."""
    return weight.view(weight.shape[0], -1, INT4_GROUP)
