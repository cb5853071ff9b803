"""Rounding weights: int8 by row, int4 by groups of 32. Pure functions; `quantized_cpu.py` multiplies with the codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

INT4_GROUP = 32  # weights that share a scale and a zero: 5 bits a weight in total
INT4_LEVELS = 16
INT8_MAX = 127
# factors for a group's range, tried in turn: clipping an outlier can help the other weights
SHRINKS = (1.0, 0.92, 0.84, 0.76)
CHUNK_ELEMENTS = 1 << 19  # elements that are rounded at once, so that intermediates stay in the processor's cache
TINY = 1e-12  # replaces the scale of a group whose weights are all equal


class Int8Rows(NamedTuple):
    """weight[n, k] ~ codes[n, k] * scales[n]."""

    codes: Tensor  # [N, K] int8, -127..127
    scales: Tensor  # [N] in the weight's dtype

    def dequantized(self) -> Tensor:
        """The weight that the codes represent, [N, K] float32."""
        return self.codes.float() * self.scales.float().unsqueeze(1)


class Int4Groups(NamedTuple):
    """weight[n, k] ~ (codes[n, k] - 8) * scales[n, k // 32] + zeros[n, k // 32]."""

    codes: Tensor  # [N, K] uint8, 0..15
    scales: Tensor  # [N, K / 32] in the weight's dtype
    zeros: Tensor  # [N, K / 32] in the weight's dtype

    def dequantized(self) -> Tensor:
        """The weight that the codes represent, [N, K] float32."""
        centred = _in_groups(self.codes.float()) - INT4_LEVELS / 2
        return (centred * self.scales.float().unsqueeze(-1) + self.zeros.float().unsqueeze(-1)).flatten(1)


def quantize_int8(weight: Tensor, largest: int = INT8_MAX) -> Int8Rows:
    """Symmetric 8-bit codes by row.

    Args:
        weight: [N, K].
        largest: the largest code.
    """
    parts = [_quantize_int8_rows(rows, largest) for rows in _in_parts(weight.detach())]
    return Int8Rows(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _quantize_int8_rows(weight: Tensor, largest: int) -> Int8Rows:
    exact = weight.float()
    scales = torch.linalg.vector_norm(exact, torch.inf, dim=1).div_(largest).clamp_min_(TINY).to(weight.dtype)
    codes = (exact / scales.float().unsqueeze(1)).round_().clamp_(-largest, largest)
    return Int8Rows(codes.to(torch.int8), scales)


def quantize_int4(weight: Tensor) -> Int4Groups:
    """Asymmetric 4-bit codes by group: the best of several ranges, after a least-squares fit of scale and zero.

    Args:
        weight: [N, K], K a multiple of 32.
    """
    parts = [_quantize_int4_rows(rows) for rows in _in_parts(weight.detach())]
    return Int4Groups(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _in_parts(weight: Tensor) -> Sequence[Tensor]:
    """Split a weight [N, K] into blocks of rows."""
    return torch.split(weight, max(1, CHUNK_ELEMENTS // weight.shape[1]))


def _quantize_int4_rows(weight: Tensor) -> Int4Groups:
    # [32, groups], so that a sum over a group is a sum of whole vectors
    groups = weight.reshape(-1, INT4_GROUP).t().float().contiguous()
    low, high, mean = groups.amin(0), groups.amax(0), groups.mean(0)
    best = _fit(groups, low, high, mean, SHRINKS[0])
    for shrink in SHRINKS[1:]:
        best = best.or_better(_fit(groups, low, high, mean, shrink))
    # rounded before the codes are chosen, so that the codes compensate for it
    scale, zero = best.scale.to(weight.dtype), best.zero.to(weight.dtype)
    codes = _codes(groups, scale.float(), zero.float())
    by_row = (weight.shape[0], -1)
    return Int4Groups(codes.to(torch.uint8).t().reshape(weight.shape), scale.view(by_row), zero.view(by_row))


class _Fit(NamedTuple):
    """A scale and a zero for each group; all float32 [groups]."""

    gain: Tensor  # how much of the group's squared deviation they explain
    scale: Tensor
    zero: Tensor

    def or_better(self, other: _Fit) -> _Fit:
        is_better = other.gain > self.gain
        return _Fit(*(torch.where(is_better, *each) for each in zip(other, self, strict=True)))


def _fit(groups: Tensor, low: Tensor, high: Tensor, mean: Tensor, shrink: float) -> _Fit:
    """The least-squares scale and zero for the codes of a range that is shrunk around its middle.

    Args:
        groups: [32, groups].
        low, high, mean: of each group, [groups].
        shrink: factor for the range.
    """
    middle, reach = (low + high) / 2, (high - low) / 2 * shrink
    scale = (2 * reach / (INT4_LEVELS - 1)).clamp_min_(TINY)
    codes = _codes(groups, scale, middle - reach + INT4_LEVELS / 2 * scale)
    mean_code = codes.mean(0)
    codes -= mean_code
    along = (codes * groups).sum(0)
    spread = codes.square_().sum(0).clamp_min_(TINY)
    scale = (along / spread).clamp_min_(TINY)
    return _Fit(along * scale, scale, mean - scale * (mean_code - INT4_LEVELS / 2))


def _codes(groups: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The nearest levels of groups [32, groups], float32.

    One multiplication and one addition each. A bfloat16 weight's zero is at most 4,000 levels away, so float32 can tell
    the levels apart.
    """
    inverse = scale.reciprocal()
    return torch.addcmul(INT4_LEVELS / 2 - zero * inverse, groups, inverse).round_().clamp_(0, INT4_LEVELS - 1)


def _in_groups(weight: Tensor) -> Tensor:
    """[N, K] -> [N, K / 32, 32]."""
    return weight.view(weight.shape[0], -1, INT4_GROUP)
