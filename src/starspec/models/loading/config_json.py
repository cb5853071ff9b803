"""A model's config.json: read by transformers, and checked for values that transformers would take in silence."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

from starspec.errors import ModelError
from starspec.models.loading.transformers_calls import as_model_error

MIN_MODEL_LEN: Final = 16  # positions: what was made for fewer cannot even read a prompt
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
ROPE_NEEDS: Final = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def read_config(model: str, folder: Path) -> Any:
    """The transformers config of a model's folder.

    Args:
        model: as the user named it, for sentences.
    Raises: ModelError if it cannot be read, or holds rotary settings that cannot be meant.
    """
    from transformers import AutoConfig  # noqa: PLC0415 (a second to import)

    check_config_json(model, folder)
    with as_model_error(f"the config.json of '{model}' cannot be read"):
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False)


def is_positive(value: object) -> TypeGuard[int | float]:
    """Whether it is a number above zero, and no infinite one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max


def check_length(model: str, max_position_embeddings: int | None) -> None:
    """Raises: ModelError if a model was made for next to no positions."""
    if max_position_embeddings is not None and max_position_embeddings < MIN_MODEL_LEN:
        raise ModelError(
            f"'{model}' cannot be used: its config.json says max_position_embeddings {max_position_embeddings}, "
            f"which should be {MIN_MODEL_LEN} or more"
        )


def check_config_json(model: str, folder: Path) -> None:
    """Look at the rotary settings in a folder's config.json, if there is one.

    Raises: as `check_rope`; transformers' own complaint would be a KeyError or a TypeError, or none. ModelError if the
        file is no JSON object: whoever reads it first in transformers may be the tokenizer, and would be blamed.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except OSError:
        return
    except ValueError as error:
        raise ModelError(f"the config.json of '{model}' cannot be read: it is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"the config.json of '{model}' cannot be read: it holds no object")
    for settings in (
        {"rope_theta": config.get("rope_theta")},
        config.get("rope_parameters"),
        config.get("rope_scaling"),
    ):
        if isinstance(settings, Mapping):
            check_rope(model, settings)


def check_rope(model: str, settings: Mapping[str, Any]) -> None:
    """Look at rotary settings, `rope_type` included; those of layer types, one in the other, are looked at each.

    Raises: ModelError naming what is missing, or is no positive number.
    """
    for key, value in settings.items():
        if isinstance(value, Mapping):
            check_rope(model, value)
        elif key in ROPE_NUMBERS and value is not None and not is_positive(value):
            raise ModelError(
                f"the config.json of '{model}' has {key} {value!r} in its rotary settings, where a positive number "
                "should be"
            )
    kind = str(settings.get("rope_type", settings.get("type", "default")))  # "type" in older files
    missing = [key for key in ROPE_NEEDS.get(kind, ()) if settings.get(key) is None]
    if missing:
        raise ModelError(
            f"the config.json of '{model}' has rotary settings of type '{kind}' without {' and '.join(missing)}"
        )
