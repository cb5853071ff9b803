"""The lean path for the Llama family: Llama, Qwen2, Qwen3 and Mistral without a window.

The same mathematics as the Hugging Face modules, in fewer and larger operations:

* query, key and value are one linear, gate and up another, each packed for the machine;
* rotary angles are looked up once a forward; the rotation runs over all heads at once, values included, whose
  angle is 0, so that keys and values land in the cache by one copy;
* attention reads the cache in place (`models/attention.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.attention import RaggedAttention
from starspec.models.batch import RaggedBatch
from starspec.models.hf import check_rotary, make_cache
from starspec.models.linear import PackedLinear, Packer
from starspec.models.numerics import ProbedLinear, settle_numerics
from starspec.models.packed import PackedRunner
from starspec.models.runner import ModelInfo

FUSED_FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")


class Norm:
    """RMS normalization over the last dimension; four operations where `F.rms_norm` runs eight."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight  # [C]
        self._eps = torch.tensor(eps, dtype=torch.float32, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]: x / sqrt(mean(x^2) + eps) in float32, rounded, times the weight."""
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


def why_not_fused(model: PreTrainedModel) -> str | None:
    """One clause that says why the model needs the Hugging Face path, or None if `FusedRunner` can run it."""
    config = model.config
    if config.model_type not in FUSED_FAMILIES:
        return f"its type is {config.model_type}, not one of {', '.join(FUSED_FAMILIES)}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    windowed = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if windowed or (config.model_type == "mistral" and config.sliding_window is not None):
        return "it has a sliding window"
    return None


class FusedRunner(PackedRunner):
    """Runs a model of the Llama family over packed linears.

    Args:
        model: a loaded causal LM in evaluation mode. Its layers are taken apart: it cannot be used afterwards.
        config: rows and lengths of the cache.
        info: what others need to know of the model; its weight bytes are replaced by those of the packed linears.
        pack: makes a packed linear from a weight and a bias.
    Raises: ModelError if the model is not of the family.
    """

    def __init__(self, model: PreTrainedModel, config: ModelConfig, info: ModelInfo, pack: Packer) -> None:
        reason = why_not_fused(model)
        if reason is not None:
            raise ModelError(f"the fused path cannot run {info.name}: {reason}")
        check_rotary(model.config)
        cache = make_cache(model, config, info)
        super().__init__(info, cache, model.config.num_attention_heads, model.lm_head.weight.shape[0])
        body = model.model
        attention = body.layers[0].self_attn
        self._num_kv_heads = cache.keys[0].shape[1]
        self._head_dim: int = attention.head_dim
        self._scaling: float = attention.scaling
        self._intermediate_size: int = model.config.intermediate_size
        self._rotary = rotary_table(body.rotary_emb, cache.keys[0].shape[2], cache.dtype)
        self._embedding: Tensor = body.embed_tokens.weight.detach()
        self._final_norm = _norm(body.norm)
        self._head = pack(model.lm_head.weight.detach(), model.lm_head.bias)
        self.layers = [_take_layer(body.layers, index, pack) for index in range(len(body.layers))]
        num_bytes = sum(linear.num_bytes for layer in self.layers for linear in layer.linears) + self._head.num_bytes
        self._info = replace(info, num_weight_bytes=num_bytes)
        if config.numerics == "invariant":
            settle_numerics(self, self.linears)

    @property
    def linears(self) -> list[ProbedLinear]:
        """The linears of one layer and the one that gives the logits."""
        layer, hidden_size = self.layers[0], self._embedding.shape[1]
        sizes = (hidden_size, self._num_heads * self._head_dim, hidden_size, self._intermediate_size)
        of_layer = [ProbedLinear(linear, size) for linear, size in zip(layer.linears, sizes, strict=True)]
        return [*of_layer, ProbedLinear(self._head, hidden_size)]

    def _run(self, batch: RaggedBatch) -> Tensor:
        hidden = F.embedding(batch.token_ids, self._embedding)  # [R, C]
        rotation = self._rotation(batch.positions)
        for index, layer in enumerate(self.layers):
            hidden = layer.output(self._attend(index, layer, hidden, rotation, batch.attention)).add_(hidden)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
            hidden = layer.down(F.silu(gate).mul_(up)).add_(hidden)
        if batch.num_logits == 0:
            return self._no_logits
        return self._head(self._final_norm(hidden[batch.logit_rows]))

    def _attend(
        self, index: int, layer: FusedLayer, hidden: Tensor, rotation: Rotation, attention: RaggedAttention
    ) -> Tensor:
        """Attention of one layer before its output projection: [R, C] -> [R, Hq D]. Writes the cache."""
        num_heads, num_kv_heads = self._num_heads, self._num_kv_heads
        qkv = layer.qkv(layer.input_norm(hidden)).view(len(hidden), -1, self._head_dim)  # [R, Hq + 2 H, D]
        if layer.query_norm is not None and layer.key_norm is not None:
            keys = slice(num_heads, num_heads + num_kv_heads)
            qkv[:, :num_heads] = layer.query_norm(qkv[:, :num_heads])
            qkv[:, keys] = layer.key_norm(qkv[:, keys])
        rotated = rotation(qkv)
        keys_values = rotated[:, num_heads:].view(len(hidden), 2, num_kv_heads, -1)
        return attention(index, rotated[:, :num_heads], keys_values, self._scaling)

    def _rotation(self, positions: Tensor) -> Rotation:
        cos, sin = self._rotary[:, positions].unsqueeze(2)  # [R, 1, D] each
        num_rotated = self._num_heads + self._num_kv_heads
        shape = (len(positions), num_rotated + self._num_kv_heads, self._head_dim)
        all_cos, all_sin = cos.new_ones(shape), sin.new_zeros(shape)
        all_cos[:, :num_rotated] = cos
        all_sin[:, :num_rotated] = sin
        return Rotation(all_cos, all_sin)


class Rotation:
    """Rotary embedding of one forward, over every head of the fused linear at once; values turn by 0.

    The halves of D are the coordinates of a pair, as transformers lays them out:

        low'  = low cos - high sin
        high' = high cos + low sin

    Args:
        cos, sin: [R, Hq + 2 H, D].
    """

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._cos = cos
        self._sin_low, self._sin_high = sin.chunk(2, dim=-1)
        self._out = torch.empty_like(cos)
        self._out_low, self._out_high = self._out.chunk(2, dim=-1)

    def __call__(self, x: Tensor) -> Tensor:
        """Turn x [R, Hq + 2 H, D] into a buffer that is valid until the next layer."""
        low, high = x.chunk(2, dim=-1)
        torch.mul(x, self._cos, out=self._out)
        self._out_low.addcmul_(high, self._sin_low, value=-1)
        self._out_high.addcmul_(low, self._sin_high)
        return self._out


def rotary_table(rotary: Any, num_positions: int, dtype: torch.dtype) -> Tensor:
    """[2, num_positions, D]: cosines and sines of the model's own rotary module."""
    positions = torch.arange(num_positions, device=rotary.inv_freq.device)
    like = torch.empty(0, dtype=dtype, device=positions.device)
    return torch.stack(rotary(like, positions.unsqueeze(0))).squeeze(1)


def _norm(module: Any) -> Norm:
    return Norm(module.weight.detach(), module.variance_epsilon)


def _join(linears: Sequence[nn.Linear], pack: Packer) -> PackedLinear:
    """One linear whose output is that of all, side by side."""
    biases = [linear.bias for linear in linears]
    bias = None if biases[0] is None else torch.cat([each.detach() for each in biases])
    return pack(torch.cat([linear.weight.detach() for linear in linears]), bias)


def _take_layer(layers: nn.ModuleList, index: int, pack: Packer) -> FusedLayer:
    """Pack a layer and let go of the original, so that the peak is one layer above the model."""
    layer: Any = layers[index]
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    fused = FusedLayer(
        input_norm=_norm(layer.input_layernorm),
        qkv=_join((attention.q_proj, attention.k_proj, attention.v_proj), pack),
        query_norm=None if query_norm is None else _norm(query_norm),
        key_norm=None if key_norm is None else _norm(key_norm),
        output=_join((attention.o_proj,), pack),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=_join((mlp.gate_proj, mlp.up_proj), pack),
        down=_join((mlp.down_proj,), pack),
    )
    layers[index] = nn.Identity()
    return fused
