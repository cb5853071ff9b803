"""The layout of `speculators`: the config.json of a head, and the names of its tensors."""

from __future__ import annotations

from typing import Any, Final

from starspec.models.heads.features import LAYER_LIST
from starspec.models.heads.spec import HeadSpec

VERSION: Final = "0.9.0"
PROPOSED_TOKENS: Final = 5  # what a written head suggests to other engines
EAGLE1_NAMES: Final = {"fc.": "fusion_fc.", "layers.0.": "transformer."}


def stored_name(spec: HeadSpec, name: str) -> str:
    """What `speculators` calls a tensor of `HeadWeights`."""
    if spec.method == "eagle":
        for ours, theirs in EAGLE1_NAMES.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
    return name


def speculators_config(spec: HeadSpec, *, has_bias: bool) -> dict[str, Any]:
    """The config.json of a head.

    Args:
        has_bias: whether `fc` has one.
    """
    is_eagle3 = spec.method == "eagle3"
    if is_eagle3:
        own: dict[str, Any] = {
            "norm_before_residual": spec.norm_before_residual,
            "norm_before_fc": False,
            "fc_norm": False,
            "norm_output": False,
            "embed_requires_grad": False,
        }
    else:
        own = {"transformer_layer_architecture": "LlamaDecoderLayer", "layernorms": False, "fusion_bias": has_bias}
    is_narrow = spec.target_hidden_size != spec.hidden_size
    return {
        "architectures": ["Eagle3Speculator" if is_eagle3 else "EagleSpeculator"],
        "speculators_model_type": spec.method,
        "speculators_version": VERSION,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "draft_vocab_size": spec.draft_vocab_size,
        "target_hidden_size": spec.target_hidden_size if is_narrow else None,
        LAYER_LIST: list(spec.feature_layers),
        **own,
        "speculators_config": {
            "algorithm": spec.method,
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": PROPOSED_TOKENS,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": spec.target_name, "architectures": []},
        },
        "transformer_layer_config": _layer_config(spec),
    }


def _layer_config(spec: HeadSpec) -> dict[str, Any]:
    scaling = dict(spec.rope_scaling) if spec.rope_scaling is not None else None
    return {
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": scaling,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
