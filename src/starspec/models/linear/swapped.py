"""Packed linears in place of the plain linears of transformers' modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D  # GPT-2's linear, with its weight the other way round

from starspec.models.linear.dense import num_dense_bytes
from starspec.models.linear.interface import Packer


def swap_linears(model: nn.Module, pack: Packer) -> None:
    """Replace every plain linear of a model by its packed form.

    Effects: the model's modules; the memory of replaced weights is freed if nothing else refers to it.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) in (nn.Linear, Conv1D):
                setattr(parent, name, SwappedLinear(child, pack))


class SwappedLinear(nn.Module):
    """A linear module whose product a packed linear computes."""

    def __init__(self, linear: Any, pack: Packer) -> None:
        super().__init__()
        weight: Tensor = linear.weight.t() if isinstance(linear, Conv1D) else linear.weight  # [N, K]
        bias: Tensor | None = linear.bias
        self.out_features, self.in_features = weight.shape
        self._packed = pack(weight.detach(), None if bias is None else bias.detach())
        # shape and dtype without memory, for code that asks a layer about its weight
        self.weight = torch.empty_like(weight, device="meta", requires_grad=False)

    @property
    def num_bytes(self) -> int:
        """Bytes of weights that one call reads."""
        return self._packed.num_bytes

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N]."""
        out = self._packed(x.reshape(-1, x.shape[-1]))
        return out.view(*x.shape[:-1], out.shape[-1])


def num_step_bytes(model: nn.Module) -> int:
    """Bytes of weights that one decoding step reads: all but the embedding rows that it does not look up."""
    linears = [each for each in model.modules() if type(each) is nn.Linear]
    swapped = [each for each in model.modules() if isinstance(each, SwappedLinear)]
    embeddings = [each for each in model.modules() if isinstance(each, nn.Embedding)]
    # a tied weight counts with the linear, not with the embedding
    known = {id(parameter) for each in (*linears, *embeddings) for parameter in each.parameters()}
    others = [each for each in model.parameters() if id(each) not in known]
    return (
        sum(num_dense_bytes(each.weight, each.bias) for each in linears)
        + sum(each.num_bytes for each in swapped)
        + sum(num_dense_bytes(each, None) for each in others)
    )
