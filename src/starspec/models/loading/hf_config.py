"""A model's config.json, as transformers reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starspec.models.loading.foreign import reading
from starspec.models.loading.soundness import check_rope_in


def read_hf_config(model: str, folder: Path) -> Any:
    """The transformers config of a model's folder.

    Args:
        model: as the user named it, for sentences.
    Raises: ModelError if it cannot be read, or holds rotary settings that cannot be meant.
    """
    from transformers import AutoConfig  # noqa: PLC0415 (a second to import)

    check_rope_in(model, folder)
    with reading(f"the config.json of '{model}' cannot be read"):
        return AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
