"""Whether a draft is an EAGLE head, and whether it is its target's, by their config.json."""

from __future__ import annotations

from typing import Any

from starspec.errors import ModelError
from starspec.json_text import parse_json
from starspec.models.heads.dialect import check_sizes, head_config, names_a_head
from starspec.models.loading.locate import is_synthetic, locate, names_a_file


def looks_like_a_head(model: str | None) -> bool:
    """Whether the config.json of a model names an EAGLE head; False if there is no readable one.

    Whoever loads such a model says what is wrong with it.

    Effects: downloads a hub id that is not cached.
    """
    return names_a_head(_config_of(model))


def check_names_a_head(model: str) -> None:
    """Check a model that was given as --head. Raises: ModelError if its config.json names no EAGLE head."""
    if not looks_like_a_head(model):
        raise ModelError(f"--head '{model}' is no EAGLE head, by its config.json: give a draft model as --draft")


def check_head_files(target: str, draft: str) -> None:
    """Compare the config.json of a head with its target's, as far as both state the sizes. Other drafts pass.

    Raises: ModelError if the head is another model's, or of a kind that is not supported.
    Effects: as looks_like_a_head.
    """
    config = _config_of(draft)
    if not names_a_head(config):
        return
    of_target = _config_of(target)
    text = of_target.get("text_config")
    shape = text if isinstance(text, dict) else of_target
    head = head_config(draft, config, ("fc.weight",))  # whoever reads the head sees which tensors it has
    check_sizes(head, shape.get("hidden_size"), shape.get("vocab_size"))


def _config_of(model: str | None) -> dict[str, Any]:
    """The config.json of a model, or an empty one if it cannot be read."""
    if model is None or is_synthetic(model) or names_a_file(model):  # a file is a .gguf
        return {}
    try:
        config = parse_json((locate(model) / "config.json").read_text("utf-8"))
    except (OSError, ValueError, ModelError):
        return {}
    return config if isinstance(config, dict) else {}
