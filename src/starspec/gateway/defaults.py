"""The model author's sampling defaults: generation_config.json fills in what a request leaves out, as in vLLM."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from starspec.errors import ModelError

FILE = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """None: the API's own default holds."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def __str__(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return ", ".join(f"{name}={value}" for name, value in given.items()) or "none"


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """The defaults in a model folder; all None if it has no generation_config.json.

    Raises: ModelError if the file is there and is no JSON object, or a value is no number.
    """
    path = folder / FILE
    if not path.exists():
        return GenerationDefaults()
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"'{path}' is no JSON object")
    found = {name: content.get(name) for name in GenerationDefaults.__dataclass_fields__}
    for name, value in found.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ModelError(f"'{path}': {name} is no number")
    return GenerationDefaults(**found)
