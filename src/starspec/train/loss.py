"""The loss of the head: cross-entropy against the target's whole distribution.

With logits l = x W', the loss is log sum exp(l) - sum p l, and its gradient is softmax(l) W - p W. The target's
distribution p is needed only in the product p W, which is a row as long as x. So the probabilities of a whole batch are
never in memory, and logits are computed piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PIECE = 256  # positions whose logits exist at once on a CPU: 4 MB, which fit into the processor's cache
PIECE_ELSEWHERE = 8192  # the same on accelerators: more, to keep all their cores busy


@dataclass(frozen=True, slots=True)
class Wanted:
    """The target's distribution at N positions."""

    mean_rows: Tensor  # [N, C]: p W
    choices: Tensor  # [N]: the target's first choice

    def __getitem__(self, indices: Tensor) -> Wanted:
        return Wanted(self.mean_rows[indices], self.choices[indices])


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """The head's loss at the same positions, and where its first choice is right."""

    entropy: Tensor  # sum over positions of the cross-entropy
    is_right: Tensor  # [N] bool: the head's first choice is the target's


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, rows: Tensor, mean_rows: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss, and keep its gradient for `backward`."""
        total = hidden.new_zeros((), dtype=torch.float32)
        gradient, predicted = torch.empty_like(mean_rows), torch.empty_like(choices)
        for piece in _pieces(hidden):
            logits = hidden[piece].to(rows.dtype) @ rows.T
            probabilities = logits.softmax(-1)
            highest, predicted[piece] = probabilities.max(-1)
            log_z = logits.gather(1, predicted[piece, None]).squeeze(1).float() - highest.float().log()
            total += log_z.sum()
            gradient[piece] = (probabilities @ rows).float() - mean_rows[piece]
        total -= (hidden * mean_rows).sum()
        ctx.save_for_backward(gradient)
        is_right = predicted == choices
        ctx.mark_non_differentiable(is_right)
        return total, is_right

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None, None


def soft_cross_entropy(hidden: Tensor, rows: Tensor, wanted: Wanted) -> HeadLoss:
    """Cross-entropy of softmax(hidden @ rows.T) against the target's distribution.

    Args:
        hidden: [N, C] float32, what the LM head reads.
        rows: [Vd, C], the LM head, frozen.
    """
    entropy, is_right = _SoftCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch's own
        hidden, rows, wanted.mean_rows, wanted.choices
    )
    return HeadLoss(entropy, is_right)


def target_distribution(last_hidden: Tensor, rows: Tensor) -> Wanted:  # [N, C], [Vd, C]
    """The target's distribution over the draft vocabulary, renormalised."""
    mean_rows = torch.empty(len(last_hidden), rows.shape[1], device=rows.device)
    choices = torch.empty(len(last_hidden), dtype=torch.int64, device=rows.device)
    for piece in _pieces(last_hidden):
        logits = last_hidden[piece].to(rows.dtype) @ rows.T
        choices[piece] = logits.argmax(-1)
        mean_rows[piece] = (logits.softmax(-1) @ rows).float()
    return Wanted(mean_rows, choices)


def step_weights(num_steps: int, decay: float) -> Sequence[float]:
    """Weights of the steps' losses; they sum to 1."""
    weights = [decay**step for step in range(num_steps)]
    return [weight / sum(weights) for weight in weights]


def _pieces(positions: Tensor) -> Iterator[slice]:  # [N, C]
    size = PIECE if positions.is_cpu else PIECE_ELSEWHERE
    return (slice(start, start + size) for start in range(0, len(positions), size))
