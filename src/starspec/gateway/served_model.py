"""What the gateway knows of the model that it serves: name, tokenizer, default sampling parameters. No weights."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import structlog

from starspec import __version__
from starspec.config import GatewayConfig
from starspec.errors import ModelError, RequestError
from starspec.fingerprint import vocab_fingerprint
from starspec.gateway.checks import check_names, named
from starspec.gateway.prompts import PromptCodec
from starspec.json_text import parse_json
from starspec.models.loading.locate import announced_name, folder_name, is_synthetic, locate
from starspec.models.loading.tokenizer import eos_token_ids, load_tokenizer
from starspec.sampling_params import SamplingParams

DEFAULTS_FILE = "generation_config.json"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What replies say of the model. Constant while the gateway runs."""

    model: str  # as /v1/models lists it
    fingerprint: str  # `starspec-<version>-<hash8>`: changes with version, model and its defaults
    created_s: int = field(default_factory=lambda: int(time.time()))  # Unix time, as the API wants it


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Sampling parameters for requests that do not set them, as in vLLM. None: the API's own default holds."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def __str__(self) -> str:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return ", ".join(f"{name}={value}" for name, value in given.items()) or "none"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Everything about the model that a gateway needs."""

    identity: ModelIdentity
    codec: PromptCodec
    defaults: GenerationDefaults
    announced: str  # by the targets that serve it


def load_served_models(config: GatewayConfig) -> list[ServedModel]:
    """All models of a gateway, in order.

    Raises: as `check_names`. Effects: as `load_served_model`.
    """
    check_names(config)
    found = [load_served_model(config)]
    for given in config.also:
        name, model = named(given)
        found.append(load_served_model(replace(config, model=model, served_model_name=name, also=())))
    return found


def load_served_model(config: GatewayConfig) -> ServedModel:
    """Load the tokenizer and the generation defaults. Effects: logs which defaults apply."""
    tokenizer = load_tokenizer(config.model)
    folder = None if is_synthetic(config.model) else locate(config.model)
    defaults = GenerationDefaults()
    if folder is not None and config.generation_config == "auto":
        defaults = read_generation_defaults(folder)
    log.info("generation defaults of the model", applied=str(defaults), generation_config=config.generation_config)
    ends = eos_token_ids(folder, tokenizer) if folder is not None else (tokenizer.eos_token_id,)
    identity = identity_of(config, vocab_fingerprint(tokenizer), str(defaults))
    return ServedModel(identity, PromptCodec(tokenizer, ends), defaults, announced_name(config.model))


def identity_of(config: GatewayConfig, vocabulary: str, defaults: str) -> ModelIdentity:
    """The name and fingerprint of the served model.

    Args:
        vocabulary: fingerprint of the tokenizer.
        defaults: the generation defaults, as text.
    """
    name = config.served_model_name or folder_name(config.model)
    parts = "\0".join([__version__, name, vocabulary, defaults])
    digest = hashlib.sha256(parts.encode()).hexdigest()
    return ModelIdentity(model=name, fingerprint=f"starspec-{__version__}-{digest[:8]}")


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """The defaults in a model folder's generation_config.json; all None if there is no such file.

    Raises: ModelError if the file is not a JSON object, or a value is not a number that a request may have.
    """
    path = folder / DEFAULTS_FILE
    if not path.exists():
        return GenerationDefaults()
    try:
        content = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"'{path}' is not a JSON object")
    found = {name: content.get(name) for name in GenerationDefaults.__dataclass_fields__}
    for name, value in found.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ModelError(f"'{path}': {name} is not a number")
    try:
        SamplingParams(**{name: value for name, value in found.items() if value is not None})
    except RequestError as error:  # each request that does not set it would be refused
        raise ModelError(f"'{path}': {error}") from error
    return GenerationDefaults(**found)
