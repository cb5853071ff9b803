"""The likeliest token of each row of logits: what greedy drafting and greedy verification both come down to."""

from __future__ import annotations

from torch import Tensor


def is_on_cpu(logits: Tensor) -> bool:
    """Whether nothing has to be launched to look at them."""
    return logits.is_cpu


def widened(logits: Tensor) -> Tensor:
    """The same numbers, exactly, in a dtype that CPUs have instructions for: float32 holds every 16-bit float."""
    return logits.float() if logits.dtype.itemsize < 4 else logits


def argmaxes(logits: Tensor) -> list[int]:
    """The argmax of each row [B, V], the lowest index among equals.

    This stands between any two layers of a greedy draft. On a CPU numpy finds it in a third to a tenth of the time that
    `Tensor.max` takes, and that, of 16-bit logits, in a third of `Tensor.argmax`'s.
    """
    if logits.is_cpu:
        return widened(logits).numpy().argmax(-1).tolist()  # type: ignore[no-any-return]
    return logits.max(dim=-1).indices.tolist()
