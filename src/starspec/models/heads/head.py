"""A running EAGLE head: one decoder layer that takes the target's features as input, over a ragged cache of its own.

    features of position i ─ fuse ─┐
    (or its own hidden state,      ├─ layer ─ hidden state of slot i ─ LM head ─ logits of token i + 2
     while i is only drafted)      │
    embedding of token i + 1 ──────┘

Sources: EAGLE (Li et al., 2024), EAGLE-3 (Li et al., 2025, section 3). Nothing here decides which tokens are emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from starspec.cache.ragged import RaggedCache
from starspec.config import DEFAULT_MAX_MODEL_LEN, MAX_DRAFT_TOKENS, ModelConfig
from starspec.models.attention.plan import AttentionMode
from starspec.models.attention.rotary import rotary_table
from starspec.models.attention.scores import ScoreRule
from starspec.models.batch import PackedBatch, RowRange, build_batch, plan_forwards
from starspec.models.fused_layer import AttentionShape, FusedLayer, Norm
from starspec.models.heads.spec import HeadSpec, HeadWeights
from starspec.models.linear.interface import PackedLinear, Packer
from starspec.models.loading.device import take_device
from starspec.models.loading.tensors import check_finite
from starspec.models.loading.transformers_calls import as_model_error, import_config_checks
from starspec.models.runner import ModelInfo, Segment

ANY_ROWS = RowRange(lowest=1, highest=None)  # a draft's last bits influence no emitted token


class HeadOutput(NamedTuple):
    """The output of a head's forward for the tokens whose logits were asked for, in segment order."""

    logits: Tensor  # [sum of num_logits, Vd]
    hidden: Tensor  # [sum of num_logits, C]: the input of their children, in place of features


class EagleHead:
    """Runs a head.

    `Segment.token_ids` are the tokens whose embeddings are its input: one position ahead of the features.

    Args:
        weights: from a checkpoint, with embedding and LM head (its own or the target's).
        config: rows of the cache, their length, dtype and device.
        name: for error messages and statistics.
        pack: makes a packed linear from a weight and a bias.
        pack_logits: the same for the LM head.
    """

    def __init__(self, weights: HeadWeights, config: ModelConfig, name: str, pack: Packer, pack_logits: Packer) -> None:
        spec, device = weights.spec, take_device(config.device)
        dtype = getattr(torch, config.dtype)
        tensors = {key: tensor.to(device, dtype) for key, tensor in weights.tensors.items()}
        self.spec = spec
        self.info = _info(spec, config, name, tensors)
        self.token_ids = None if weights.draft_token_ids is None else weights.draft_token_ids.to(device)
        self.cache = RaggedCache.within(
            config.kv_budget_bytes,
            num_layers=1,
            num_rows=config.num_rows,
            max_len=self.info.max_model_len + MAX_DRAFT_TOKENS,
            num_kv_heads=spec.num_key_value_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
            device=device,
        )
        self._shape = AttentionShape(
            spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim, [ScoreRule(spec.head_dim**-0.5)]
        )
        self._rotary = _rotary(name, spec, self.cache)
        check_finite(name, [("its table of rotary angles", self._rotary)])
        self._embedding = tensors["embed_tokens.weight"]
        self._fuse = pack(tensors["fc.weight"], tensors.get("fc.bias"))
        self._hidden_norm = _norm(tensors, "layers.0.hidden_norm.weight", spec)
        self._final_norm = _norm(tensors, "norm.weight", spec)
        self._layer = _layer(tensors, spec, pack)
        self._head: PackedLinear = pack_logits(tensors["lm_head.weight"], None)
        self._no_output = HeadOutput(
            torch.empty(0, spec.draft_vocab_size, dtype=dtype, device=device),
            torch.empty(0, spec.hidden_size, dtype=dtype, device=device),
        )

    @torch.inference_mode()
    def fuse(self, features: Tensor) -> Tensor:
        """Turn the target's features [T, F] into the layer's input in place of hidden states, [T, C]."""
        features = features.to(self.cache.device, self.cache.dtype)
        return self._fuse(features) if self.spec.is_eagle3 else features

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], hidden: Tensor) -> HeadOutput:
        """Run the head over new tokens of several rows.

        Args:
            segments: of different rows.
            hidden: [sum of num_new, C] in segment order: fused features where the target has verified, otherwise the
                parent's hidden state.
        Raises: CacheRangeError if a segment does not fit into its row. Effects: slots behind each row's length.
        """
        for segment in segments:
            self.cache.check_fits(segment.row, len(segment.token_ids))
        outputs, start = [self._no_output], 0
        for pieces in plan_forwards(segments, ANY_ROWS):
            batch = build_batch(pieces, self.cache, ANY_ROWS, self._shape.num_heads, AttentionMode.FAST)
            stop = start + sum(piece.num_tokens for piece in pieces)
            outputs.append(self._run(batch, hidden[start:stop]))
            start = stop
        if len(outputs) == 2:
            return outputs[1]
        return HeadOutput(torch.cat([each.logits for each in outputs]), torch.cat([each.hidden for each in outputs]))

    def _run(self, batch: PackedBatch, hidden: Tensor) -> HeadOutput:
        embedded = F.embedding(batch.token_ids, self._embedding)  # [R, C]
        residual, joined = self._joined(embedded, hidden)
        rotation = self._shape.rotation(self._rotary, batch.positions)
        attended = self._shape.attend(0, self._layer, self._layer.qkv(joined), rotation, batch.attention)
        if batch.num_logits == 0:
            return self._no_output  # keys and values are written; nothing else is wanted
        if batch.num_logits < len(embedded):
            attended, residual = attended[batch.logit_rows], residual[batch.logit_rows]
        mixed = self._layer.output(attended).add_(residual)
        gate, up = self._layer.gate_up(self._layer.mlp_norm(mixed)).chunk(2, dim=-1)
        output = self._layer.down(F.silu(gate).mul_(up)).add_(mixed)
        return HeadOutput(self._head(output if self._final_norm is None else self._final_norm(output)), output)

    def _joined(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The residual [R, C], and the input of the query-key-value linear: [R, 2 C] for EAGLE-3, else [R, C]."""
        if self._hidden_norm is None:
            fused = self._fuse(torch.cat((embedded, hidden), dim=-1))
            return fused, self._layer.input_norm(fused) if self.spec.has_input_norm else fused
        normed = self._hidden_norm(hidden)
        joined = torch.cat((self._layer.input_norm(embedded), normed), dim=-1)
        return normed if self.spec.norm_before_residual else hidden, joined


def _layer(tensors: dict[str, Tensor], spec: HeadSpec, pack: Packer) -> FusedLayer:
    def weight(name: str) -> Tensor:
        return tensors[f"layers.0.{name}.weight"]

    mlp_norm = _norm(tensors, "layers.0.post_attention_layernorm.weight", spec)
    assert mlp_norm is not None
    return FusedLayer(
        # the published EAGLE-1 heads have no such norm; it is not called then
        input_norm=_norm(tensors, "layers.0.input_layernorm.weight", spec) or mlp_norm,
        qkv=pack(torch.cat([weight(f"self_attn.{each}_proj") for each in "qkv"]), None),
        query_norm=None,
        key_norm=None,
        output=pack(weight("self_attn.o_proj"), None),
        mlp_norm=mlp_norm,
        gate_up=pack(torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")]), None),
        down=pack(weight("mlp.down_proj"), None),
    )


def _norm(tensors: dict[str, Tensor], name: str, spec: HeadSpec) -> Norm | None:
    return Norm(tensors[name], spec.rms_norm_eps) if name in tensors else None


def _rotary(name: str, spec: HeadSpec, cache: RaggedCache) -> Tensor:
    import_config_checks()
    from transformers import LlamaConfig  # noqa: PLC0415 (without the line above it takes four seconds)

    with as_model_error(f"the rotary settings of '{name}' cannot be used"):
        config = LlamaConfig(
            hidden_size=spec.hidden_size,
            num_attention_heads=spec.num_attention_heads,
            head_dim=spec.head_dim,
            # scaling depends on it, not on the length of this run
            max_position_embeddings=spec.max_position_embeddings,
            rope_parameters={"rope_type": "default", **(spec.rope_scaling or {}), "rope_theta": spec.rope_theta},
        )
        return rotary_table(config, cache.keys[0].shape[2], cache.dtype, cache.device)


def max_len_of(spec: HeadSpec, config: ModelConfig) -> int:
    """Tokens of the longest sequence that a head drafts for."""
    return min(config.max_model_len or DEFAULT_MAX_MODEL_LEN, spec.max_position_embeddings)


def _info(spec: HeadSpec, config: ModelConfig, name: str, tensors: dict[str, Tensor]) -> ModelInfo:
    of_step = [tensor for key, tensor in tensors.items() if key != "embed_tokens.weight"]
    return ModelInfo(
        name=name,
        vocab_size=spec.vocab_size,
        max_model_len=max_len_of(spec, config),
        num_parameters=sum(each.numel() for each in tensors.values()),
        num_weight_bytes=sum(each.numel() * each.element_size() for each in of_step),
        eos_token_ids=(),
    )
