"""Whether a draft is an EAGLE head, by its config.json."""

from __future__ import annotations

import json
from pathlib import Path

from starspec.errors import ModelError
from starspec.models.heads.dialect import names_a_head
from starspec.models.loading.locate import is_synthetic, locate


def looks_like_a_head(model: str | None) -> bool:
    """Whether the config.json of a model names an EAGLE head; False if there is no readable one.

    Whoever loads such a model says what is wrong with it.

    Effects: downloads a hub id that is not cached.
    """
    if model is None or is_synthetic(model) or Path(model).expanduser().is_file():  # a file is a .gguf
        return False
    try:
        config = json.loads((locate(model) / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError, ModelError):
        return False
    return isinstance(config, dict) and names_a_head(config)
