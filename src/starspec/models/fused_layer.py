"""One decoder layer of the Llama family: its packed weights, and its attention between the two linears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starspec.models.attention.ragged import BatchAttention
from starspec.models.attention.rotary import Rotation
from starspec.models.attention.scores import ScoreRule
from starspec.models.linear.interface import PackedLinear, Packer
from starspec.models.loading.device import is_accelerator


class Norm:
    """RMS normalization over the last dimension.

    On a CPU it takes four operations where `F.rms_norm` takes eight. On accelerators it is one kernel, which rounds
    once, after multiplying by the weight.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight  # [C]
        self._eps_value = eps
        self._eps = torch.tensor(eps, dtype=torch.float32, device=weight.device)
        self._is_one_kernel = is_accelerator(weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]: x / sqrt(mean(x^2) + eps) in float32, times the weight.

        The four operations on a CPU round the quotient before they multiply it.
        """
        if self._is_one_kernel:
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps_value)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._eps, norm, norm, value=1 / x.shape[-1]).rsqrt_()
        return torch.mul(x, scale, out=torch.empty_like(x)).mul_(self._weight)


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """The packed weights of one decoder layer."""

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


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The layout of the fused linear's output: Hq query heads, H key heads and H value heads of size D."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rules: Sequence[ScoreRule]  # of each layer

    def rotation(self, table: Tensor, positions: Tensor) -> Rotation:
        """The rotation of one forward: queries and keys rotate by their positions, values by 0.

        Args:
            table: [2, S, D] cosines and sines.
            positions: [R].
        """
        cos, sin = table[:, positions].unsqueeze(2)  # [R, 1, D] each
        num_rotated = self.num_heads + self.num_kv_heads
        shape = (len(positions), num_rotated + self.num_kv_heads, self.head_dim)
        all_cos, all_sin = cos.new_ones(shape), sin.new_zeros(shape)
        all_cos[:, :num_rotated] = cos
        all_sin[:, :num_rotated] = sin
        return Rotation(all_cos, all_sin, self.num_heads)

    def attend(
        self, index: int, layer: FusedLayer, qkv: Tensor, rotation: Rotation, attention: BatchAttention
    ) -> Tensor:
        """Attention of layer `index`, from the fused query-key-value linear up to the output projection.

        Args:
            index: of the layer.
            layer: its weights.
            qkv: [R, (Hq + 2 H) D] from the fused linear; changed in place if the layer normalizes queries and keys.
            rotation: of this forward.
            attention: of this forward.
        Returns: [R, Hq D], valid until the next layer. Effects: the cache slots of the batch's tokens.
        """
        heads = qkv.view(len(qkv), -1, self.head_dim)  # [R, Hq + 2 H, D]
        if layer.query_norm is not None and layer.key_norm is not None:
            keys = slice(self.num_heads, self.num_heads + self.num_kv_heads)
            heads[:, : self.num_heads] = layer.query_norm(heads[:, : self.num_heads])
            heads[:, keys] = layer.key_norm(heads[:, keys])
        rotation.turn(heads)
        return attention(index, rotation.queries, rotation.keys_values, self.rules[index])


def take_norm(module: Any) -> Norm:
    return Norm(own_copy(module.weight), module.variance_epsilon)


def own_copy(weight: Tensor) -> Tensor:
    """A copy with memory of its own: a tensor as loaded may keep its whole checkpoint file mapped."""
    return weight.detach().clone()


def _join(linears: Sequence[nn.Linear], pack: Packer) -> PackedLinear:
    """One linear whose output is the outputs of all these, side by side."""
    biases = [linear.bias for linear in linears]
    bias = None if biases[0] is None else torch.cat([each.detach() for each in biases])
    return pack(torch.cat([linear.weight.detach() for linear in linears]), bias)


def take_layer(layers: nn.ModuleList, index: int, pack: Packer) -> FusedLayer:
    """Pack a layer and release the original, so that peak memory is that of the model and one layer."""
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
