"""From the options about drafting to one SpeculativeConfig."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from starspec.cli.binder import flag_of
from starspec.config import MAX_DRAFT_TOKENS, Policy, Quantization, SpeculativeConfig
from starspec.config.option import A_MODEL, DRAFT_P_MIN, NONE_GIVEN, SPECULATION, Option
from starspec.draft_methods import DraftMethod
from starspec.errors import ConfigError
from starspec.json_text import parse_json

FLAG: Final = "--speculative-config"
DEFAULTS: Final = SpeculativeConfig()
SHORT_FORMS: Final = ("method", "model", "quantization", "num_speculative_tokens", "draft_p_min")
DRAFT_OPTIONS: Final = ("model", "quantization", "method", "num_speculative_tokens", "draft_p_min", "json_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """What the command line says about drafting; None = not said."""

    model: Annotated[
        str | None,
        Option(
            f"Draft model: {A_MODEL}. The same as 'model' of {FLAG}.",
            SPECULATION,
            flags=("--draft", "--spec-model"),  # `--spec-model` is what vLLM calls it
            shown=NONE_GIVEN,
        ),
    ] = None
    quantization: Annotated[
        Quantization | None,
        Option(
            f"Quantization of the draft's weights; the output cannot change. The same as 'quantization' of {FLAG}.",
            SPECULATION,
            flags=("--draft-quantization",),
            shown=DEFAULTS.quantization,
        ),
    ] = None
    method: Annotated[
        DraftMethod | None,
        Option(
            f"What drafts: a model, an EAGLE head, or prompt lookup. The same as 'method' of {FLAG}.",
            SPECULATION,
            flags=("--spec-method",),
            shown=DEFAULTS.method,
        ),
    ] = None
    num_speculative_tokens: Annotated[
        int | None,
        Option(
            f"Most draft tokens of a round, 0 to {MAX_DRAFT_TOKENS}. The same as 'num_speculative_tokens' of {FLAG}.",
            SPECULATION,
            flags=("--spec-tokens",),
            shown=f"{DEFAULTS.depth}",
        ),
    ] = None
    draft_p_min: Annotated[
        float | None,
        replace(
            DRAFT_P_MIN,
            help=f"{DRAFT_P_MIN.help} The same as 'draft_p_min' of {FLAG}.",
            shown=f"{DEFAULTS.draft_p_min:g}",
        ),
    ] = None
    json_text: Annotated[
        str | None,
        Option(
            "JSON object with vLLM's keys (method, model, quantization, num_speculative_tokens, ...), "
            "and ours under 'remote' and 'length'.",
            SPECULATION,
            flags=(FLAG, "-sc"),
            shown=NONE_GIVEN,
        ),
    ] = None
    hub: Annotated[
        str | None,
        Option("Public port of the draft server, tcp://HOST:PORT.", SPECULATION, shown=NONE_GIVEN),
    ] = None

    def to_config(
        self, keys: str | None = None, insecure: bool = False, *, policy: Policy = DEFAULTS.length.policy
    ) -> SpeculativeConfig | None:
        """The short forms merged into the JSON; None if nothing asks for drafting.

        Args:
            keys, insecure: given for the whole process; the JSON may name others for the link to the hub.
            policy: of lengths, if the JSON names none.
        Raises: ConfigError if both say the same thing, if the JSON is invalid, or if a key or value is unknown.
        """
        short_forms = {name: getattr(self, name) for name in SHORT_FORMS}
        if all(said is None for said in (self.json_text, self.hub, *short_forms.values())):
            return None
        values = {"length": {"policy": policy}} | _parse(self.json_text)
        for name, value in short_forms.items():
            _put(values, name, value, flag_of(DraftOptions, name), name)
        if self.hub is not None or "remote" in values:
            remote = values.get("remote", {})
            values["remote"] = self._remote(remote, keys, insecure) if isinstance(remote, Mapping) else remote
        return SpeculativeConfig.from_mapping(values)

    def _remote(self, remote: Mapping[str, Any], keys: str | None, insecure: bool) -> dict[str, Any]:
        merged = dict(remote)
        _put(merged, "endpoint", self.hub, "--hub", "remote.endpoint")
        return {"keys": keys, "insecure": insecure, **merged} if merged.get("endpoint") is not None else merged


def check_draft_is_named(speculative: SpeculativeConfig | None) -> None:
    """Check what drafts in this process.

    Raises: ConfigError if it is told how to draft and has no model, or as `check_alone`.
    """
    if (
        speculative is not None
        and speculative.traits.needs_model
        and (speculative.model, speculative.remote) == (None, DEFAULTS.remote)
    ):
        raise ConfigError("options of drafting need a draft: give --draft MODEL, or --spec-method ngram")
    if speculative is not None:
        speculative.check_alone()


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
        values = parse_json(text, may_repeat_keys=False)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20]
        where = f"at character {error.pos + 1}, before '{near}'" if near else "at its end"
        raise ConfigError(f"{FLAG} is not valid JSON: {error.msg.lower()} {where}") from error
    except ValueError as error:
        raise ConfigError(f"{FLAG} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f'{FLAG} must be a JSON object, as in \'{{"model": "FOLDER"}}\', not {text.strip()[:40]}')
    found = {key.replace("-", "_"): value for key, value in values.items()}
    if len(found) < len(values):
        raise ConfigError(f"{FLAG} has a key twice, once with - and once with _: give it once")
    return found
