"""From the options about drafting to one SpeculativeConfig."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starspec.config import SpeculativeConfig
from starspec.errors import ConfigError

FLAG = "--speculative-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What the command line says about drafting; None = not said."""

    json_text: str | None = None
    method: str | None = None
    model: str | None = None
    quantization: str | None = None
    num_tokens: int | None = None
    p_min: float | None = None
    hub: str | None = None
    keys: str | None = None  # given for the whole process; the JSON may name others for the link to the hub
    insecure: bool = False

    def to_config(self) -> SpeculativeConfig | None:
        """The short forms merged into the JSON; None if nothing asks for drafting.

        Raises: ConfigError if both say the same thing, if the JSON is none, or if a key or value is not known.
        """
        short_forms = {
            ("--spec-method", "method"): self.method,
            ("--draft", "model"): self.model,
            ("--draft-quantization", "quantization"): self.quantization,
            ("--spec-tokens", "num_speculative_tokens"): self.num_tokens,
            ("--draft-p-min", "draft_p_min"): self.p_min,
        }
        if all(said is None for said in (self.json_text, self.hub, *short_forms.values())):
            return None
        values = _parse(self.json_text)
        for (flag, key), value in short_forms.items():
            _put(values, key, value, flag, key)
        if self.hub is not None or "remote" in values:
            values["remote"] = _remote(values.get("remote", {}), self)
        return SpeculativeConfig.from_mapping(values)


def _remote(remote: Any, options: DraftOptions) -> Any:
    if not isinstance(remote, Mapping):
        return remote  # from_mapping says what is wrong with it
    merged = {"keys": options.keys, "insecure": options.insecure, **remote}
    _put(merged, "endpoint", options.hub, "--hub", "remote.endpoint")
    return merged


def _put(values: dict[str, Any], key: str, value: Any, flag: str, path: str) -> None:
    if value is None:
        return
    if values.get(key) is not None:
        raise ConfigError(f"{flag} and '{path}' in {FLAG} say the same thing: give one of them")
    values[key] = value


def _parse(text: str | None) -> dict[str, Any]:
    """A JSON object; dashes in keys count as underscores."""
    if text is None:
        return {}
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20]
        where = f"at character {error.pos + 1}, before '{near}'" if near else "at its end"
        raise ConfigError(f"{FLAG} is not valid JSON: {error.msg.lower()} {where}") from error
    if not isinstance(values, dict):
        raise ConfigError(f'{FLAG} must be a JSON object, as in \'{{"model": "FOLDER"}}\', not {text.strip()[:40]}')
    return {key.replace("-", "_"): value for key, value in values.items()}
