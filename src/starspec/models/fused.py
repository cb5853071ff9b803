"""The fused path for the Llama family: Llama, Mistral, Qwen2 and Qwen3, with or without sliding windows.

It computes the same as the Hugging Face modules, in fewer and larger operations:

* query, key and value are one linear, gate and up another, each packed for the machine;
* rotary angles are looked up once a forward. The rotation runs over all heads at once, values included (with angle 0),
  so that one copy puts keys and values into the cache;
* attention reads the cache in place (`models/attention/ragged.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch.nn.functional as F
from torch import Tensor, nn

from starspec.config import ModelConfig
from starspec.errors import ModelError
from starspec.models.attention.rotary import check_rotary, rotary_table
from starspec.models.attention.scores import ScoreRule
from starspec.models.batch import PackedBatch
from starspec.models.fused_layer import AttentionShape, own_copy, take_layer, take_norm
from starspec.models.layers import LayerRange
from starspec.models.linear.interface import Packer, StepLinear
from starspec.models.loading.transformers_calls import as_model_error
from starspec.models.packed import FeatureTaps, PackedRunner, make_cache
from starspec.models.runner import ModelInfo

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FUSED_FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")


def why_not_fused(config: PreTrainedConfig) -> str | None:
    """A clause that says why a model needs the Hugging Face path, or None if `FusedRunner` can run it."""
    if config.model_type not in FUSED_FAMILIES:
        return f"its type is {config.model_type}, not one of {', '.join(FUSED_FAMILIES)}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    other = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if other:
        return f"it has layers with {min(other)}"
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        return "it rotates a part of each head"
    return None


def layer_windows(config: PreTrainedConfig) -> list[int | None]:
    """The sliding window of each layer of a model of `FUSED_FAMILIES`; None = the layer has none."""
    window: int | None = getattr(config, "sliding_window", None)
    if config.model_type == "llama":  # its code does not read such a setting
        window = None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


class FusedRunner(PackedRunner):
    """Runs a model of the Llama family with packed linears.

    Args:
        model: transformers' causal LM, or `LlamaWeights`. Its layers are taken apart: it cannot be used afterwards.
        config: rows and lengths of the cache.
        info: facts about the model; its weight bytes are replaced by those of the packed linears.
        pack: makes a packed linear from a weight and a bias.
        layers: those that `leave_out` has left; None = all.
    Raises: ModelError if the model is not of the family.
    """

    def __init__(
        self, model: Any, config: ModelConfig, info: ModelInfo, pack: Packer, layers: LayerRange | None = None
    ) -> None:
        reason = why_not_fused(model.config)
        if reason is not None:
            raise ModelError(f"the fused path cannot run {info.name}: {reason}")
        check_rotary(info.name, model.config, info.max_model_len)
        body = model.model
        layers = layers or LayerRange.whole(len(body.layers))
        own = range(layers.start, layers.end)
        attention = body.layers[layers.start].self_attn
        num_heads, num_kv_heads = model.config.num_attention_heads, model.config.num_key_value_heads
        cache = make_cache(
            model, config, info, num_layers=layers.size, num_kv_heads=num_kv_heads, head_dim=attention.head_dim
        )
        super().__init__(info, layers, cache, num_heads)
        windows = layer_windows(model.config)
        self.score_rules = [ScoreRule(attention.scaling, windows[index]) for index in own]
        self._shape = AttentionShape(num_heads, num_kv_heads, attention.head_dim, self.score_rules)
        self._hidden_size: int = model.config.hidden_size
        self._intermediate_size: int = model.config.intermediate_size
        with as_model_error(f"the rotary settings of '{info.name}' cannot be used"):
            self._rotary = rotary_table(model.config, cache.keys[0].shape[2], cache.dtype, cache.device)
        self._embedding = own_copy(body.embed_tokens.weight) if layers.is_first else None
        self._final_norm = take_norm(body.norm) if layers.is_last else None
        self._head = pack(model.lm_head.weight.detach(), model.lm_head.bias) if layers.is_last else None
        model.lm_head = nn.Identity()
        self.fused_layers = [take_layer(body.layers, index, pack) for index in own]
        self._info = replace(info, num_weight_bytes=sum(each.num_bytes for each in self.step_linears))

    @property
    def step_linears(self) -> list[StepLinear]:
        size = self._hidden_size
        sizes = (size, self._num_heads * self._shape.head_dim, size, self._intermediate_size)
        pairs = [pair for layer in self.fused_layers for pair in zip(layer.linears, sizes, strict=True)]
        if self._head is not None:
            pairs.append((self._head, size))
        return [StepLinear(linear, size, linear.num_bytes) for linear, size in pairs]

    def _run(self, batch: PackedBatch, taps: FeatureTaps) -> Tensor:
        hidden = self._entering(batch)  # [R, C]
        rotation = self._shape.rotation(self._rotary, batch.positions)
        for index, layer in enumerate(self.fused_layers):
            taps.show(self._layers.start + index, hidden)
            attended = self._shape.attend(index, layer, layer.qkv(layer.input_norm(hidden)), rotation, batch.attention)
            hidden = layer.output(attended).add_(hidden)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
            hidden = layer.down(F.silu(gate).mul_(up)).add_(hidden)
        if self._final_norm is None or self._head is None:
            return hidden
        if taps.wants(self._layers.end):
            taps.show(self._layers.end, self._final_norm(hidden))
        if batch.num_logits == 0:
            return self._no_logits
        return self._head(self._final_norm(hidden[batch.logit_rows]))

    def _entering(self, batch: PackedBatch) -> Tensor:
        """What the first of the layers takes: [R, C]."""
        if self._embedding is not None:
            return F.embedding(batch.token_ids, self._embedding)
        assert batch.hidden is not None, "only the first stage begins with token ids"
        return batch.hidden
