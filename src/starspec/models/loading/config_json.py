"""A model's config.json: reading it, and refusing values that transformers would accept although they make no sense."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

from starspec.errors import ConfigError, ModelError
from starspec.json_text import parse_json
from starspec.models.loading.transformers_calls import as_model_error, import_config_checks
from starspec.quoting import quoted

MIN_MODEL_LEN: Final = 16  # positions; a model made for fewer cannot even hold a prompt
ROPE_NUMBERS: Final = (
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
)
MAX_ROPE_NUMBER: Final = 1e18  # far more than any model has, and products of two of them are still finite
STRETCHED: Final = ("yarn", "linear")  # rotary scalings whose configs still give the length before scaling
ROPE_NEEDS: Final = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "dynamic": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def read_config(model: str, folder: Path) -> Any:
    """The transformers config of a model's folder.

    Args:
        model: as the user named it, for error messages.
        folder: the model's folder.
    Raises: ModelError if the file cannot be read or has impossible rotary settings.
    """
    from transformers import AutoConfig  # noqa: PLC0415 (a second to import)

    check_config_json(model, folder)
    import_config_checks()
    with as_model_error(f"the config.json of '{model}' cannot be read"):
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False)


def cache_shape(config: Any) -> tuple[int, int, int]:
    """What a row of a model's cache holds: layers, heads of keys and values, and the size of a head.

    Args:
        config: transformers' config of the model.
    Returns: the larger of the sizes of keys and of values, as `models/hf.py` will find it.
    """
    text = config.get_text_config(decoder=True)
    num_layers, num_heads = text.num_hidden_layers, text.num_attention_heads
    if getattr(text, "kv_lora_rank", None):  # DeepSeek: the keys and values of all heads are made before attention
        return num_layers, num_heads, max(text.qk_nope_head_dim + text.qk_rope_head_dim, text.v_head_dim)
    num_kv_heads = 1 if getattr(text, "multi_query", False) else getattr(text, "num_key_value_heads", None)
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // num_heads
    return num_layers, num_kv_heads or num_heads, head_dim


def is_positive(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number above zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def check_length(model: str, max_position_embeddings: int | None) -> None:
    """Raises: ModelError if the model was made for hardly any positions."""
    if max_position_embeddings is not None and max_position_embeddings < MIN_MODEL_LEN:
        raise ModelError(
            f"'{model}' cannot be used: its config.json says max_position_embeddings {max_position_embeddings}, "
            f"which should be {MIN_MODEL_LEN} or more"
        )


def check_context_length(model: str, max_model_len: int | None, own: int | None) -> None:
    """Raises: ConfigError if sequences are to be longer than those that a model was made for; None = not said."""
    if max_model_len is not None and own is not None and max_model_len > own:
        raise ConfigError(f"max_model_len {max_model_len} is more than the {own} tokens that '{model}' was made for")


def made_for(length: object, rope: Mapping[str, Any]) -> int | None:
    """The longest sequence that a model was made for, in tokens; None if its config does not say.

    Args:
        length: its max_position_embeddings.
        rope: its rotary settings.
    """
    if not isinstance(length, int) or length <= 0:
        return None
    if rope.get("rope_type", rope.get("type")) not in STRETCHED:
        return length
    return max(length, int(rope.get("factor", 1.0) * (rope.get("original_max_position_embeddings") or length)))


def declared_length(folder: Path) -> int | None:
    """As `made_for`, of a folder whose config.json was checked. None also where the length has another name there."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return made_for(
        config.get("max_position_embeddings"), config.get("rope_parameters") or config.get("rope_scaling") or {}
    )


def declared_layers(folder: Path) -> int | None:
    """Layers of the model in a folder whose config.json was checked; None if they have another name there."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    text = config.get("text_config")
    num_layers = (text if isinstance(text, Mapping) else config).get("num_hidden_layers")
    return num_layers if isinstance(num_layers, int) else None


def declared_cache_numbers(folder: Path) -> int | None:
    """Numbers that keys and values of a token take in the cache of the model in a folder whose config.json was checked.

    None if the config does not say it under the usual names.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config
    if text.get("multi_query") or text.get("kv_lora_rank"):
        return None
    num_layers, num_heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    num_kv_heads, head_dim = text.get("num_key_value_heads") or num_heads, text.get("head_dim")
    if not head_dim and _is_count(num_heads) and _is_count(text.get("hidden_size")):
        head_dim = text["hidden_size"] // num_heads
    if _is_count(num_layers) and _is_count(num_kv_heads) and _is_count(head_dim):
        return 2 * num_layers * num_kv_heads * head_dim
    return None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and value > 0


def check_config_json(model: str, folder: Path) -> None:
    """Check the rotary settings in a folder's config.json, if the file exists.

    transformers would report them as a KeyError or a TypeError, or not at all. The file is parsed here first because in
    transformers the tokenizer may be the first to read it, and would get the blame.

    Raises: ModelError as `check_rope`, or if the file is not a JSON object.
    """
    try:
        config = parse_json((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise ModelError(f"the config.json of '{model}' cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ModelError(f"the config.json of '{model}' cannot be read: it is not valid JSON: {error}") from error
    except ValueError as error:
        raise ModelError(f"the config.json of '{model}' cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"the config.json of '{model}' cannot be read: it is not a JSON object")
    check_rope(model, {"rope_theta": config.get("rope_theta")})
    for key in ("rope_parameters", "rope_scaling"):
        settings = config.get(key)
        if isinstance(settings, Mapping):
            check_rope(model, settings)
        elif settings is not None:
            raise ModelError(f"the config.json of '{model}' has {key} {quoted(settings)}, where an object should be")


def check_rope(model: str, settings: Mapping[str, Any]) -> None:
    """Check rotary settings, `rope_type` included. Nested settings (one for each layer type) are checked too.

    Raises: ModelError that names what is missing or is not a positive number.
    """
    for key, value in settings.items():
        if key not in ROPE_NUMBERS:
            if isinstance(value, Mapping):
                check_rope(model, value)
        elif value is not None and not (is_positive(value) and value <= MAX_ROPE_NUMBER):
            raise ModelError(
                f"the config.json of '{model}' has {key} {quoted(value)} in its rotary settings, where a positive "
                f"number should be, of {MAX_ROPE_NUMBER:g} at most"
            )
    kind = str(settings.get("rope_type", settings.get("type", "default")))  # "type" in older files
    missing = [key for key in ROPE_NEEDS.get(kind, ()) if settings.get(key) is None]
    if missing:
        raise ModelError(
            f"the config.json of '{model}' has rotary settings of type '{kind}' without {' and '.join(missing)}"
        )
