"""Reading EAGLE heads from disk, in any of the published dialects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from starspec.errors import ModelError
from starspec.models.heads.dialect import HeadConfig, check_sizes, head_config
from starspec.models.heads.feature_layers import FeatureLayers, resolve_layers
from starspec.models.heads.files import read_files
from starspec.models.heads.spec import HeadSpec, HeadWeights, TargetShape
from starspec.models.heads.tensors import canonical_tensors, check_tensors, token_ids_of
from starspec.models.loading.config_json import check_length


def read_head(
    head: str | Path, *, target: TargetShape | None = None, feature_layers: tuple[int, ...] | None = None
) -> HeadWeights:
    """Read a head of any dialect.

    Args:
        head: its folder, or a Hub id.
        target: the model that it drafts for; None = not known, in which case the head must list its layers.
        feature_layers: indices into Hugging Face's `hidden_states` that replace those of the head's config.
    Returns: the tensors in their stored dtype, on the CPU.
    Effects: downloads a Hub id unless it is cached.
    Raises: ModelError in one sentence if the head is missing, corrupt, not supported or does not fit the target.
    """
    return _open(str(head), target, feature_layers)[0]


def read_feature_layers(head: str | Path, *, target: TargetShape | None = None) -> FeatureLayers:
    """Which layers `read_head` assumes that a head takes as input, why, and the other interpretation of its list.

    Raises: as `read_head`.
    """
    return _open(str(head), target, None)[1]


def _open(head: str, target: TargetShape | None, given: tuple[int, ...] | None) -> tuple[HeadWeights, FeatureLayers]:
    stored_config, stored = read_files(head)
    tensors = canonical_tensors(stored)
    offsets, mask = tensors.pop("d2t", None), tensors.pop("t2d", None)
    config = head_config(head, stored_config, tensors)
    layers = resolve_layers(config, target, given)
    spec = _spec(config, tensors, offsets, layers.layers)
    check_length(head, spec.max_position_embeddings)
    _check_num_features(head, spec, tensors)
    check_tensors(head, spec, tensors)
    if target is not None:
        check_sizes(config, target.hidden_size, target.vocab_size)
    if offsets is None:
        return HeadWeights(spec, tensors, None), layers
    return _in_order(spec, tensors, token_ids_of(head, offsets, mask, spec.vocab_size)), layers


def _spec(
    config: HeadConfig, tensors: Mapping[str, Tensor], offsets: Tensor | None, layers: tuple[int, ...]
) -> HeadSpec:
    hidden_size, num_heads = config.hidden_size, config.integer("num_attention_heads", 32)
    rope_theta, rope_scaling = config.rope()
    return HeadSpec(
        method=config.method,
        hidden_size=hidden_size,
        target_hidden_size=config.target_hidden_size,
        intermediate_size=config.integer("intermediate_size", 11008),
        num_attention_heads=num_heads,
        num_key_value_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=config.integer("head_dim", max(1, hidden_size // num_heads)),
        vocab_size=config.vocab_size,
        draft_vocab_size=_draft_vocab_size(config, offsets),
        feature_layers=layers,
        max_position_embeddings=config.integer("max_position_embeddings", 2048),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        norm_before_residual=bool(config.get("norm_before_residual")),
        has_input_norm=not config.is_eagle3 and "layers.0.input_layernorm.weight" in tensors,
        target_name=config.target_name,
    )


def _draft_vocab_size(config: HeadConfig, offsets: Tensor | None) -> int:
    vocab_size = config.vocab_size
    size = config.integer("draft_vocab_size", vocab_size if offsets is None else offsets.numel())
    if offsets is None and size != vocab_size:
        raise ModelError(
            f"'{config.head}' is incomplete: tensor d2t is missing, which maps its {size} tokens to the "
            f"target's {vocab_size} tokens"
        )
    if offsets is not None and offsets.numel() != size:
        raise ModelError(
            f"'{config.head}' does not fit its config.json: d2t should be [{size}], but is {list(offsets.shape)}"
        )
    return size


def _check_num_features(head: str, spec: HeadSpec, tensors: Mapping[str, Tensor]) -> None:
    weight = tensors.get("fc.weight")
    if weight is None or weight.dim() != 2:
        return  # `check_tensors` reports it
    width = weight.shape[1] - (0 if spec.is_eagle3 else spec.hidden_size)
    num_layers, rest = divmod(width, spec.target_hidden_size)
    if rest == 0 and num_layers != len(spec.feature_layers):
        raise ModelError(
            f"'{head}' takes {num_layers} of the target's hidden states as input, not {list(spec.feature_layers)}"
        )


def _in_order(spec: HeadSpec, tensors: dict[str, Tensor], token_ids: Tensor) -> HeadWeights:
    """The same head with its tokens in the target's order. The ids are None if the head has all target tokens."""
    token_ids, order = token_ids.sort()
    if "lm_head.weight" in tensors and not torch.equal(order, torch.arange(len(order))):
        tensors["lm_head.weight"] = tensors["lm_head.weight"][order]
    return HeadWeights(spec, tensors, None if len(token_ids) == spec.vocab_size else token_ids)
