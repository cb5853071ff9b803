"""Which models the ragged cache can serve, and the error that refuses the others.

A cache row holds keys and values by position, and a rollback forgets positions. So a model must keep no other state
between tokens, and must let starspec provide its attention.
"""

from __future__ import annotations

import sys
from typing import Any

from starspec.errors import ModelError
from starspec.models.loading.config_json import made_for

ATTENDING_LAYERS = {"full_attention", "sliding_attention"}
CAUSAL_SUFFIXES = ("ForCausalLM", "LMHeadModel")
ALWAYS_CAUSAL = {"gpt_neox"}  # whatever `is_decoder` in its config says: its code does not read it


def check_config(model: str, config: Any) -> None:
    """Refuse a model whose config already shows that it is not one plain causal LM over keys and values.

    Args:
        model: name for the error message.
        config: transformers' config of the model.
    Raises: ModelError that says what is not supported and why.
    """
    why = _why_not_causal(config) or _why_not_plain_weights(config) or _why_other_state(config)
    if why:
        raise ModelError(f"'{model}' ({config.model_type}) is not supported: {why}")


def check_class(model: str, config: Any, model_class: type) -> None:
    """Refuse a model class that keeps other state, or whose attention cannot be replaced.

    Raises: ModelError that says what is not supported and why.
    """
    if getattr(model_class, "_is_stateful", False):
        why = "it keeps recurrent state, which cannot be rolled back by forgetting positions"
    elif not _attends_through_the_interface(model_class):
        why = "its code in transformers has its own attention, so it cannot use starspec's key-value cache"
    else:
        return
    raise ModelError(f"'{model}' ({config.model_type}) is not supported: {why}")


def _attends_through_the_interface(model_class: type) -> bool:
    """Whether a model looks its attention function up in transformers' registry. Not every class that does says so."""
    code = sys.modules.get(model_class.__module__)
    return getattr(model_class, "_supports_attention_backend", False) or hasattr(code, "ALL_ATTENTION_FUNCTIONS")


def model_length(config: Any) -> int | None:
    """The longest sequence that the model was made for, in tokens; None if its config does not say."""
    return made_for(getattr(config, "max_position_embeddings", None), getattr(config, "rope_parameters", None) or {})


def _why_not_causal(config: Any) -> str | None:
    if config.is_encoder_decoder:
        return "it is an encoder-decoder, and only decoder-only language models are supported"
    architectures = getattr(config, "architectures", None) or []
    if architectures and not any(name.endswith(CAUSAL_SUFFIXES) for name in architectures):
        return f"it is a {architectures[0]}, not a causal language model"
    if getattr(config, "is_decoder", None) is False and config.model_type not in ALWAYS_CAUSAL:
        return "it is a bidirectional encoder, not a causal language model"
    if config.get_text_config() is not config:
        return "it consists of several models (such as text and images), and only plain language models are supported"
    return None


def _why_not_plain_weights(config: Any) -> str | None:
    quantized = getattr(config, "quantization_config", None)
    if not quantized:
        return None
    method = quantized.get("quant_method") if isinstance(quantized, dict) else getattr(quantized, "quant_method", None)
    return (
        f"its weights are stored quantized ({method or 'unknown method'}); give the original checkpoint, "
        "which --draft-quantization can quantize at load"
    )


def _why_other_state(config: Any) -> str | None:
    other = sorted(set(getattr(config, "layer_types", None) or []) - ATTENDING_LAYERS)
    if "chunked_attention" in other:
        return "its layers attend in chunks, which starspec's attention does not compute"
    if other:
        return f"its layers keep more state than keys and values ({', '.join(other)}), which cannot be rolled back"
    return None
