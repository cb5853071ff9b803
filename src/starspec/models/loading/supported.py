"""Which models the ragged cache can serve, and the sentence that refuses the others.

A row of the cache is keys and values by position, and rolling back is forgetting positions. So a model must keep
nothing else between tokens, must see every earlier position, and must let us provide its attention.
"""

from __future__ import annotations

from typing import Any

from starspec.errors import ModelError

WINDOWED_LAYERS = {"sliding_attention", "chunked_attention"}
CAUSAL_SUFFIXES = ("ForCausalLM", "LMHeadModel")
ALWAYS_CAUSAL = {"gpt_neox"}  # whatever its config's `is_decoder`, which nothing of it reads, says


def check_config(model: str, config: Any) -> None:
    """Refuse what a config alone shows: not one plain causal LM over keys and values.

    Args:
        model: name for the sentence.
        config: transformers' config of the model.
    Raises: ModelError that says what and why.
    """
    why = _why_not_causal(config) or _why_not_plain_weights(config) or _why_other_state(config)
    if why:
        raise ModelError(f"'{model}' ({config.model_type}) is not supported: {why}")


def require_plain_attention(model: str, config: Any, max_model_len: int) -> None:
    """Refuse attention that would not see every earlier position; drop a window that no sequence can outgrow.

    Raises: ModelError naming the window and the largest `max_model_len` that makes it harmless.
    Effects: `config.sliding_window` becomes None where the window is harmless, so that the model is built without.
    """
    window = getattr(config, "sliding_window", None)
    # a config with layer types that had windows was refused before; in the others the window has no effect
    if window is None or getattr(config, "layer_types", None):
        return
    if window < max_model_len:
        raise ModelError(
            f"'{model}' ({config.model_type}) is not supported at this length: its sliding-window attention sees only "
            f"{window} tokens, and sequences may have {max_model_len}; --max-model-len {window} or less makes it plain"
        )
    config.sliding_window = None


def check_class(model: str, config: Any, model_class: type) -> None:
    """Refuse a model class that keeps other state, or whose attention cannot be replaced.

    Raises: ModelError that says what and why.
    """
    if getattr(model_class, "_is_stateful", False):
        why = "it keeps recurrent state, which cannot be rolled back by forgetting positions"
    elif not getattr(model_class, "_supports_attention_backend", False):
        why = "its code in transformers has attention of its own, so it cannot read our key-value cache"
    else:
        return
    raise ModelError(f"'{model}' ({config.model_type}) is not supported: {why}")


STRETCHED = ("yarn", "linear")  # rotary scalings beside which configs go on to tell the length before


def model_length(config: Any) -> int | None:
    """The longest sequence the model was made for, in tokens; None where its config does not say."""
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length <= 0:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") not in STRETCHED:
        return length
    return max(length, int(rope.get("factor", 1.0) * (rope.get("original_max_position_embeddings") or length)))


def _why_not_causal(config: Any) -> str | None:
    if config.is_encoder_decoder:
        return "it is an encoder-decoder, and only decoder-only language models are served"
    architectures = getattr(config, "architectures", None) or []
    if architectures and not any(name.endswith(CAUSAL_SUFFIXES) for name in architectures):
        return f"it is a {architectures[0]}, not a causal language model"
    if getattr(config, "is_decoder", None) is False and config.model_type not in ALWAYS_CAUSAL:
        return "it is a bidirectional encoder, not a causal language model"
    if config.get_text_config() is not config:
        return "it is made of several models (text and images, say), and only plain language models are served"
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
    layers = set(getattr(config, "layer_types", None) or [])
    other = sorted(layers - WINDOWED_LAYERS - {"full_attention"})
    if layers & WINDOWED_LAYERS:
        return "it has layers with sliding-window attention, which forget positions that a row of the cache keeps"
    if other:
        return (
            f"its layers keep more than keys and values by position ({', '.join(other)}), which cannot be rolled back"
        )
    if getattr(config, "kv_lora_rank", None):
        return "its multi-head latent attention has keys and values of different sizes, which the cache does not hold"
    return None
