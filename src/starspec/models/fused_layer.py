"""One decoder layer of the Llama family, packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starspec.models.linear.interface import PackedLinear, Packer
from starspec.models.loading.device import is_accelerator


class Norm:
    """RMS normalization over the last dimension; on a CPU four operations where `F.rms_norm` runs eight.

    On accelerators that is one kernel, which rounds once, behind the weight.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight  # [C]
        self._eps_value = eps
        self._eps = torch.tensor(eps, dtype=torch.float32, device=weight.device)
        self._is_one_kernel = is_accelerator(weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]: x / sqrt(mean(x^2) + eps) in float32, rounded but by one kernel, times the weight."""
        if self._is_one_kernel:
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps_value)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
        return torch.mul(x, scale, out=torch.empty_like(x)).mul_(self._weight)


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The weights of one decoder layer, packed."""

    input_norm: Norm
    qkv: PackedLinear  # hidden -> (Hq + 2 H) D
    query_norm: Norm | None  # over D (Qwen3)
    key_norm: Norm | None
    output: PackedLinear  # Hq D -> hidden
    mlp_norm: Norm
    gate_up: PackedLinear  # hidden -> 2 I
    down: PackedLinear  # I -> hidden

    @property
    def linears(self) -> tuple[PackedLinear, ...]:
        return (self.qkv, self.output, self.gate_up, self.down)


def take_norm(module: Any) -> Norm:
    return Norm(own_copy(module.weight), module.variance_epsilon)


def own_copy(weight: Tensor) -> Tensor:
    """A copy without history: a tensor as loaded may keep its whole checkpoint file mapped."""
    return weight.detach().clone()


def _join(linears: Sequence[nn.Linear], pack: Packer) -> PackedLinear:
    """One linear whose output is that of all, side by side."""
    biases = [linear.bias for linear in linears]
    bias = None if biases[0] is None else torch.cat([each.detach() for each in biases])
    return pack(torch.cat([linear.weight.detach() for linear in linears]), bias)


def take_layer(layers: nn.ModuleList, index: int, pack: Packer) -> FusedLayer:
    """Pack a layer and let go of the original, so that the peak is one layer above the model."""
    layer: Any = layers[index]
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    fused = FusedLayer(
        input_norm=take_norm(layer.input_layernorm),
        qkv=_join((attention.q_proj, attention.k_proj, attention.v_proj), pack),
        query_norm=None if query_norm is None else take_norm(query_norm),
        key_norm=None if key_norm is None else take_norm(key_norm),
        output=_join((attention.o_proj,), pack),
        mlp_norm=take_norm(layer.post_attention_layernorm),
        gate_up=_join((mlp.gate_proj, mlp.up_proj), pack),
        down=_join((mlp.down_proj,), pack),
    )
    layers[index] = nn.Identity()
    return fused
