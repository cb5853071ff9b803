"""What is wrong with the models of a command, as far as names and small files show it without torch."""

from __future__ import annotations

from starspec.models.loading.config_json import check_config_json
from starspec.models.loading.locate import is_synthetic, locate
from starspec.models.synthetic.spec import parse_synthetic


def find_models(*models: str | None) -> None:
    """Find models before anything slow is imported, and before several processes look for them.

    Args:
        models: targets, drafts and heads; None and "" = not given.
    Raises: ModelError if one is missing or its config.json is none; ConfigError for a synthetic model with an unknown
        parameter.
    Effects: downloads a hub id and converts a .gguf file, with a progress bar, unless that has been done.
    """
    for model in dict.fromkeys(each for each in models if each):
        if is_synthetic(model):
            parse_synthetic(model)
        else:
            check_config_json(model, locate(model))
