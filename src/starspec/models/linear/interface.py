"""What a linear layer is to a runner: a callable that knows how many bytes it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class PackedLinear(Protocol):
    """x [M, K] -> x W^T + b [M, N], with the weight in whatever layout is fastest."""

    @property
    def num_bytes(self) -> int:
        """Bytes of weights read by one call."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...


Packer = Callable[[Tensor, Tensor | None], PackedLinear]
"""weight [N, K], bias [N] or None -> the packed linear; the originals may be freed after."""


@dataclass(frozen=True, slots=True)
class StepLinear:
    """A linear where a decoding step meets it."""

    call: Callable[[Tensor], Tensor]  # [R, in_features] -> [R, N]
    in_features: int
    num_bytes: int


def plus(out: Tensor, bias: Tensor | None) -> Tensor:
    """out [M, N] + bias [N], if there is one. Effects: `out` may be the sum."""
    return out if bias is None else out.add_(bias)
