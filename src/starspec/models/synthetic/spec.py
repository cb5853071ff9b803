"""The parameters of a synthetic model, given in its name: `synthetic:vocab=512,step_ms=20,alpha=0.8,role=draft`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal

import msgspec

from starspec.config import ModelConfig, nearest
from starspec.errors import ConfigError, ModelError
from starspec.models.loading.locate import SYNTHETIC_PREFIX

MIN_VOCAB: Final = 64
MAX_VOCAB: Final = 2**20  # each token has a word in the tokenizer
EOS_TOKEN_ID: Final = 0
NUM_SPECIAL_TOKENS: Final = 4  # ids that no forward ever prefers


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """A model without weights. A target and a draft match if only their role and times differ.

    Raises: ConfigError if a value is out of range.
    """

    role: Literal["target", "draft"] = "target"
    vocab: int = 512  # tokens
    seed: int = 0  # another seed gives another language
    alpha: float = 0.8  # probability that the target's token is the draft's first choice
    # probabilities of the draft's next three choices, as 0.10/0.05/0.03; "": half of the remainder each
    later: str = ""
    step_ms: float = 20.0  # a forward over one token of one sequence
    per_sequence: float = 0.0  # share of step_ms for every further sequence
    per_token: float = 0.0  # share of step_ms for every further token of a sequence

    def __post_init__(self) -> None:
        if self.vocab < MIN_VOCAB:
            raise ConfigError(f"synthetic model: vocab must be at least {MIN_VOCAB}, got {self.vocab}")
        if self.vocab > MAX_VOCAB:
            raise ConfigError(f"synthetic model: vocab must be at most {MAX_VOCAB}, got {self.vocab}")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"synthetic model: alpha must be 0 to 1, got {self.alpha}")
        if len(self.choice_probabilities) != 4 or min(self.choice_probabilities) < 0:
            raise ConfigError(f"synthetic model: later must be three probabilities, as 0.1/0.05/0.03, got {self.later}")
        if sum(self.choice_probabilities) > 1 + 1e-9:
            raise ConfigError(f"synthetic model: alpha {self.alpha} and later {self.later} add up to more than 1")
        for name in ("step_ms", "per_sequence", "per_token"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"synthetic model: {name} must not be negative, got {getattr(self, name)}")

    @property
    def choice_probabilities(self) -> tuple[float, ...]:
        """Probabilities that the target's token is the draft's first, second, third and fourth choice."""
        if not self.later:
            return (self.alpha, *((1 - self.alpha) / 2**rank for rank in (1, 2, 3)))
        try:
            return (self.alpha, *map(float, self.later.split("/")))
        except ValueError:
            return ()

    def forward_s(self, num_sequences: int, num_tokens: int) -> float:
        """Modelled duration in seconds of a forward over `num_tokens` tokens of `num_sequences` sequences."""
        further = self.per_sequence * (num_sequences - 1) + self.per_token * (num_tokens - num_sequences)
        return self.step_ms / 1e3 * (1 + further)


def check_weightless(config: ModelConfig) -> None:
    """Raises: ConfigError if a config asks a synthetic model for quantization or a device."""
    if config.quantization != "none":
        raise ConfigError(
            f"'{config.model}' has no weights to quantize to {config.quantization}: give quantization none, "
            "as with --draft-quantization none"
        )
    if config.device != "cpu":
        raise ConfigError(f"'{config.model}' has no weights to put on '{config.device}': give device cpu")


def parse_synthetic(model: str) -> SyntheticSpec:
    """Parse `synthetic:key=value,...`.

    Raises: ConfigError that names an unknown key and the nearest known one, or a value of the wrong kind or out of
        range; ModelError if the name does not begin with `synthetic:`.
    """
    if not model.startswith(SYNTHETIC_PREFIX):
        raise ModelError(f"'{model}' is not a synthetic model: its name does not begin with '{SYNTHETIC_PREFIX}'")
    names = [each.name for each in fields(SyntheticSpec)]
    values: dict[str, str] = {}
    for part in filter(None, model.removeprefix(SYNTHETIC_PREFIX).split(",")):
        key, equals, value = part.partition("=")
        if key not in names:
            raise ConfigError(f"synthetic model: unknown key '{key}'{nearest(key, names)}")
        if not equals or key in values:
            raise ConfigError(f"synthetic model: '{key}' needs exactly one value, as in {key}=...")
        values[key] = value
    try:
        return msgspec.convert(values, SyntheticSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"synthetic model: {error}") from error
