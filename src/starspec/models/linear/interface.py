"""A linear layer as runners use it: a callable that knows how many bytes it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class PackedLinear(Protocol):
    """x [M, K] -> x W^T + b [M, N], with the weight in the fastest layout."""

    @property
    def num_bytes(self) -> int:
        """Bytes of weights that one call reads."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...


Packer = Callable[[Tensor, Tensor | None], PackedLinear]
"""weight [N, K], bias [N] or None -> the packed linear. The originals may be freed afterwards."""


@dataclass(frozen=True, slots=True)
class StepLinear:
    """One linear of a decoding step, as the step calls it."""

    call: Callable[[Tensor], Tensor]  # [R, in_features] -> [R, N]
    in_features: int
    num_bytes: int


def plus(out: Tensor, bias: Tensor | None) -> Tensor:
    """out [M, N] + bias [N], if there is a bias. Effects: `out` may hold the sum."""
    return out if bias is None else out.add_(bias)
