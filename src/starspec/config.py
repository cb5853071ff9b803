"""What each process is told at start: one frozen dataclass per concern, units in the names, nothing mutated.

Precedence is flag > file > default; unknown keys are errors that name the nearest known key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

import msgspec

from starspec.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "int8", "int4")
MAX_DRAFT_TOKENS = 64
MAX_TOP_LOGPROBS = 20
MIN_LEASE_S = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model and how it is run."""

    model: str  # Hugging Face folder, hub id, or .gguf file
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    device: str = "cpu"  # cpu | cuda | cuda:N
    quantization: Literal["none", "int8", "int4"] = "none"  # weight-only; drafts
    numerics: Literal["invariant", "fast"] = "invariant"  # the same bits with and without speculation, or speed
    max_model_len: int | None = None  # tokens a row can hold; None = the model's own, at most 4096
    num_rows: int = 8  # cache rows: sequences held at once
    num_threads: int | None = None  # torch threads; None = torch's own choice
    fused: bool = True  # False: unmodified Hugging Face modules, the reference

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("quantization", self.quantization, QUANTIZATIONS)
        _one_of("numerics", self.numerics, ("invariant", "fast"))
        _at_least("num_rows", self.num_rows, 1)
        if self.num_threads is not None:
            _at_least("num_threads", self.num_threads, 1)
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """`"remote": {...}` of a speculative config: where the hub is and what to do without it."""

    endpoint: str | None = None  # tcp://host:port of the hub's public port; None = a hub of one's own in this process
    keys: str | None = None  # folder made by `starspec keygen`; required unless the host is loopback
    insecure: bool = False  # allow a host that is not loopback without keys
    deadline_ms: float | None = None  # longest wait for proposals; None = follows recent rounds
    fallback: Literal["ngram", "none"] = "none"  # drafter of rounds that the hub misses

    def __post_init__(self) -> None:
        _one_of("remote.fallback", self.fallback, ("ngram", "none"))
        if self.deadline_ms is not None and self.deadline_ms <= 0:
            raise ConfigError(f"remote.deadline_ms must be positive, got {self.deadline_ms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthConfig:
    """`"length": {...}` of a speculative config: how far to speculate."""

    policy: Literal["fixed"] = "fixed"

    def __post_init__(self) -> None:
        _one_of("length.policy", self.policy, ("fixed",))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """`--speculative-config`: vLLM's keys where the meaning is the same, ours under `remote` and `length`."""

    method: Literal["draft_model", "ngram"] = "draft_model"
    model: str | None = None  # the draft; None with `remote.endpoint` (the hub has it) or method ngram
    quantization: Literal["none", "int8", "int4"] = "none"  # of the draft's weights
    num_speculative_tokens: int = 4  # K: depth of the chain, 0..64
    max_model_len: int | None = None  # of the draft
    prompt_lookup_min: int = 2  # shortest n-gram that method ngram looks up
    prompt_lookup_max: int = 4  # longest
    rejection_sample_method: Literal["coupled"] = "coupled"  # the target's token decides, design D1
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    length: LengthConfig = field(default_factory=LengthConfig)

    def __post_init__(self) -> None:
        _one_of("method", self.method, ("draft_model", "ngram"))
        _one_of("quantization", self.quantization, QUANTIZATIONS)
        _one_of("rejection_sample_method", self.rejection_sample_method, ("coupled",))
        if not 0 <= self.num_speculative_tokens <= MAX_DRAFT_TOKENS:
            raise ConfigError(f"num_speculative_tokens must be 0 to {MAX_DRAFT_TOKENS}")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError("prompt_lookup_min must be at least 1 and at most prompt_lookup_max")
        if self.method == "ngram" and self.model is not None:
            raise ConfigError("method 'ngram' takes no model")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Build from parsed JSON; dashes in keys count as underscores.

        Raises: ConfigError naming the unknown key and the nearest known one, or the value that is out of range.
        """
        where = "speculative config"
        known = {key.replace("-", "_"): value for key, value in values.items()}
        for key, part in (("remote", RemoteConfig), ("length", LengthConfig)):
            if isinstance(known.get(key), Mapping):
                _check_keys(part, known[key], f"{where}, {key}")
        return build(cls, known, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """A draft server."""

    host: str = "127.0.0.1"  # interface to listen on
    port: int = 7700  # public port; 0 = any free one
    data_ports: tuple[int, int] | None = None  # inclusive range of the targets' own ports; None = any free ones
    keys: str | None = None  # folder made by `starspec keygen`
    insecure: bool = False
    max_targets: int = 64
    max_tags: int = 1024  # over all targets
    max_draft_tokens: int = 16  # nodes of one proposal, at most
    lease_s: float = 10.0  # a target silent for longer loses its tags
    prefill_chunk: int = 256  # prompt tokens of one draft forward, of all sessions together

    def __post_init__(self) -> None:
        for name in ("max_targets", "max_tags", "max_draft_tokens", "prefill_chunk"):
            _at_least(name, getattr(self, name), 1)
        _at_least("lease_s", self.lease_s, MIN_LEASE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A target server."""

    name: str = "target"  # shown in metrics, tables and traces; unique within a star
    host: str = "127.0.0.1"
    port: int = 7800  # 0 = any free one
    keys: str | None = None
    insecure: bool = False
    max_num_seqs: int = 8  # sequences decoded at once = cache rows
    max_num_queued_reqs: int = 256  # waiting line; beyond it requests are rejected with 503
    prefill_chunk: int = 256  # prompt tokens of one forward
    lease_s: float = 10.0  # requests of a gateway silent for longer are aborted
    shutdown_timeout_s: float = 10.0  # running requests may take so long after SIGTERM

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_queued_reqs", "prefill_chunk"):
            _at_least(name, getattr(self, name), 1)
        _at_least("lease_s", self.lease_s, MIN_LEASE_S)
        _at_least("shutdown_timeout_s", self.shutdown_timeout_s, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The OpenAI-compatible front."""

    host: str = "127.0.0.1"
    port: int = 8000
    targets: tuple[str, ...] = ("tcp://127.0.0.1:7800",)  # serving ports
    hub: str | None = None  # public port of the hub, for /metrics
    model: str = ""  # folder of the tokenizer
    served_model_name: str | None = None  # None = the folder's name
    api_key: str | None = None  # None = no key asked
    keys: str | None = None
    insecure: bool = False
    max_body_bytes: int = 4 * 1024 * 1024
    generation_config: Literal["auto", "ignore"] = "auto"  # whether the model's generation_config.json gives defaults
    keep_alive_s: float = 15.0  # a stream without a token for so long gets an SSE comment
    shutdown_timeout_s: float = 30.0  # answers in flight may end for so long after `stop`

    def __post_init__(self) -> None:
        _one_of("generation_config", self.generation_config, ("auto", "ignore"))


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a config dataclass from a mapping.

    Args:
        where: what the mapping is, for the error's sentence.
    Raises: ConfigError naming an unknown key and the nearest known one, or a value out of range.
    """
    _check_keys(kind, values, where)
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_keys(kind: type, values: Mapping[str, Any], where: str) -> None:
    names = [each.name for each in fields(kind)]
    for key in values:
        if key not in names:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, names)}")


def nearest(word: str, known: list[str]) -> str:
    """`; did you mean 'x'?`, or the list of known words when none is near."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(sorted(known))}"


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} '{value}' is unknown{nearest(str(value), list(known))}")


def _at_least(name: str, value: float, minimum: float) -> None:
    if value < minimum:
        raise ConfigError(f"{name} must be at least {minimum}, got {value}")
