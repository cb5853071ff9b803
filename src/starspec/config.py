"""What each process is told at start: one frozen dataclass per concern, units in the names, nothing mutated.

Precedence is flag > file > default; unknown keys are errors that name the nearest known key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from starspec.draft_methods import DRAFT_METHODS, DraftMethod, MethodTraits
from starspec.errors import ConfigError
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget

EAGLE_METHODS = tuple(method for method, traits in DRAFT_METHODS.items() if traits.reads_features)
WINDOW_BATCHES = 4  # of ExSpec's window, unless it is given
MAX_PASSED_OVER = 32  # rounds of ExSpec, unless it is given: fewer break up groups that would find each other
MAX_NUM_THREADS = 1024  # of a forward; the next ones are refused by the machine, in other words
DEFAULT_MAX_MODEL_LEN = 4096  # tokens: a cache is sized by it, and few requests are longer
MAX_DRAFT_TOKENS = MAX_FORWARDED  # nodes of a proposal
MAX_TOP_K = 16  # children of a draft node
MAX_TOP_LOGPROBS = 20
MAX_STOP_LEN = 10_000  # characters of a stop string
MAX_FEATURE_LAYERS = 16  # hidden states of one position that a head may read
MIN_LEASE_S = 0.1  # of a target at its hub, which tells it: it speaks in time
MIN_SERVING_LEASE_S = 2.0  # of a gateway at a target: gateways ask twice a second, whatever the lease
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0  # of a target

Dtype = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "int4"]
"""Of weights alone."""
Numerics = Literal["invariant", "fast"]
"""The same bits with and without speculation, or speed."""
SampleMethod = Literal["coupled", "rejection"]
AheadMode = Literal["off", "chain", "outcomes"]
"""What a hub drafts for a session while its proposal is in verification and nobody waits.

off         nothing (StarSD as published)
chain       what follows if all of it is accepted; and nobody waits for a chain to become as long as asked for: whoever
            asks gets what has grown (AMUSD)
outcomes    what follows each likely outcome; and nobody waits for the rest of a chain longer than that pays
"""
RunAhead = Literal[AheadMode, "auto"]
"""The same for all sessions; or, for each, what makes its rounds best, by trials."""
PrefixScope = Literal["off", "target", "hub"]
"""Of which other tags a tag may copy what was read of the same prompt: none; those of its target; all."""
Admission = Literal["off", "n_max"] | int
"""How many targets a hub drafts for at once: all; as many as all gain by it (StarSD's N_max); or so many."""
MaxBatch = Literal["auto"] | int
"""How many sessions share a draft forward: as many as pay, by what such forwards have cost; or so many."""
Scheduling = Literal["fair", "fifo"]
"""Who grows first when not all can: targets in turns, by weight; or who came first."""
BatchingMethod = Literal["ragged", "eqspec", "exspec", "rollback"]
BatchAdmission = Literal["continuous", "fixed"]
BATCHINGS: tuple[BatchingMethod, ...] = get_args(BatchingMethod)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model and how it is run."""

    model: str  # Hugging Face folder, hub id, or .gguf file
    dtype: Dtype = "bfloat16"
    device: str = "cpu"  # cpu | cuda | cuda:N
    quantization: Quantization = "none"  # drafts
    numerics: Numerics = "invariant"
    max_model_len: int | None = None  # tokens a row can hold; None = the model's own, at most 4096
    num_rows: int = 8  # cache rows: sequences held at once
    kv_budget_bytes: int | None = None  # as many rows as fit into so much memory, instead of num_rows
    num_threads: int | None = None  # torch threads; None = torch's own choice
    fused: bool = True  # False: unmodified Hugging Face modules, the reference
    enforce_eager: bool = False  # True: no CUDA graphs; every kernel is launched by itself

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, get_args(Dtype))
        _one_of("quantization", self.quantization, get_args(Quantization))
        _one_of("numerics", self.numerics, get_args(Numerics))
        _at_least("num_rows", self.num_rows, 1)
        if self.kv_budget_bytes is not None:
            _at_least("kv_budget_bytes", self.kv_budget_bytes, 1)
        if self.num_threads is not None:
            _at_least("num_threads", self.num_threads, 1)
            if self.num_threads > MAX_NUM_THREADS:
                raise ConfigError(f"num_threads must be at most {MAX_NUM_THREADS}, got {self.num_threads}")
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

    method: DraftMethod = "draft_model"
    model: str | None = None  # draft or EAGLE head; None with `remote.endpoint` (the hub has it) or method ngram
    quantization: Quantization = "none"  # of the draft's weights
    num_speculative_tokens: int = 4  # K: depth of the chain, 0..64
    eagle_topk: int = 1  # trees as SGLang names them: children of a node, 1 = a chain
    num_steps: int | None = None  # depth of the tree; None = num_speculative_tokens
    num_draft_tokens: int | None = None  # nodes of the tree and its root (so K + 1 for a chain); None = all that fit
    draft_p_min: float = 0.0  # drafting ends where the draft gives what it would go on from less; 0 = never
    disable_by_batch_size: int | None = None  # rounds of more sequences than this draft nothing; None = all draft
    max_model_len: int | None = None  # of the draft
    feature_layers: tuple[int, ...] | None = None  # hidden states that an EAGLE head reads; None = as it says itself
    prompt_lookup_min: int = 2  # shortest n-gram that method ngram looks up
    prompt_lookup_max: int = 4  # longest
    rejection_sample_method: SampleMethod = "coupled"  # the target's token decides; rejection: its law does
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    length: LengthConfig = field(default_factory=LengthConfig)

    def __post_init__(self) -> None:
        _one_of("method", self.method, get_args(DraftMethod))
        _one_of("quantization", self.quantization, get_args(Quantization))
        _one_of("rejection_sample_method", self.rejection_sample_method, get_args(SampleMethod))
        if not 0 <= self.num_speculative_tokens <= MAX_DRAFT_TOKENS:
            raise ConfigError(f"num_speculative_tokens must be 0 to {MAX_DRAFT_TOKENS}")
        self._check_tree()
        if self.disable_by_batch_size is not None:
            _at_least("disable_by_batch_size", self.disable_by_batch_size, 1)
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError("prompt_lookup_min must be at least 1 and at most prompt_lookup_max")
        if self.model is not None and not self.traits.needs_model:
            raise ConfigError(f"method '{self.method}' takes no model")

    @property
    def traits(self) -> MethodTraits:
        return DRAFT_METHODS[self.method]

    @property
    def budget(self) -> DraftBudget:
        """What a round asks for. `num_draft_tokens` counts the root here, as in SGLang, and not there."""
        num_steps = self.num_speculative_tokens if self.num_steps is None else self.num_steps
        if self.eagle_topk == 1 or num_steps == 0:
            return DraftBudget.chain(num_steps, self.draft_p_min)
        num_nodes = MAX_DRAFT_TOKENS if self.num_draft_tokens is None else self.num_draft_tokens - 1
        tree = DraftBudget(num_nodes, num_steps, self.eagle_topk, self.draft_p_min)
        return replace(tree, num_draft_tokens=min(num_nodes, tree.max_nodes))

    def _check_tree(self) -> None:
        if not 1 <= self.eagle_topk <= MAX_TOP_K:
            raise ConfigError(f"eagle_topk must be 1 to {MAX_TOP_K}, got {self.eagle_topk}")
        if self.num_steps is not None and not 0 <= self.num_steps <= MAX_DRAFT_TOKENS:
            raise ConfigError(f"num_steps must be 0 to {MAX_DRAFT_TOKENS}, got {self.num_steps}")
        budget = self.budget
        if budget.num_forwarded > MAX_FORWARDED:
            raise ConfigError(
                f"eagle_topk {budget.top_k} with num_steps {budget.num_steps} forwards {budget.num_forwarded} nodes a"
                f" round; at most {MAX_FORWARDED} fit: lower one of them"
            )
        if not (budget.is_chain or self.traits.draws_trees):
            raise ConfigError(f"method '{self.method}' drafts chains: leave eagle_topk at 1")
        if not 0.0 <= self.draft_p_min <= 1.0:
            raise ConfigError(f"draft_p_min is a probability, 0 to 1, got {self.draft_p_min}")
        if self.draft_p_min and not self.traits.knows_probabilities:
            raise ConfigError(f"method '{self.method}' knows no probabilities: leave draft_p_min out")
        if self.num_draft_tokens is None:
            return
        if not 2 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS + 1:
            raise ConfigError(f"num_draft_tokens (the root counts) must be 2 to {MAX_DRAFT_TOKENS + 1}")
        if self.eagle_topk == 1 and self.num_draft_tokens != budget.num_steps + 1:
            raise ConfigError(
                f"num_draft_tokens is {self.num_draft_tokens}, but a chain of {budget.num_steps} steps has"
                f" {budget.num_steps + 1} with its root: leave it out, or set eagle_topk above 1 for a tree"
            )
        if budget.num_steps == 0:
            raise ConfigError(f"num_draft_tokens is {self.num_draft_tokens}, but 0 steps draft nothing: leave one out")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Build from parsed JSON; dashes in keys count as underscores.

        Raises: ConfigError naming the unknown key and the nearest known one, or what is out of range or said twice.
        """
        where = "speculative config"
        known = {str(key).replace("-", "_"): value for key, value in values.items()}
        for key, part in (("remote", RemoteConfig), ("length", LengthConfig)):
            if isinstance(known.get(key), Mapping):
                _check_keys(part, known[key], f"{where}, {key}")
        config = build(cls, known, where)
        depths = (known.get("num_speculative_tokens"), config.num_steps)
        if None not in depths and depths[0] != depths[1]:
            raise ConfigError(
                f"num_speculative_tokens {depths[0]} and num_steps {depths[1]} are two words for the depth of a draft:"
                " leave one out"
            )
        return config


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
    max_draft_tokens: int = MAX_DRAFT_TOKENS  # nodes of one proposal, at most
    lease_s: float = 10.0  # a target silent for longer loses its tags
    prefill_chunk: int = 256  # prompt tokens of one draft forward, of all sessions together
    max_batch: MaxBatch = "auto"  # sessions that grow in one draft forward; 1 = one at a time, as StarSD
    share_prefixes: PrefixScope = "target"  # whose sequences may begin with what was read of another's
    run_ahead: RunAhead = "off"  # what is drafted while proposals are in verification and nobody waits
    scheduling: Scheduling = "fair"  # who grows first when not all can
    admission: Admission = "off"  # how many targets are drafted for at once
    weights: Mapping[str, float] = field(default_factory=dict)  # target's name -> its share of fair scheduling; else 1
    slo_round_ms: Mapping[str, float] = field(default_factory=dict)  # target's name -> its rounds are to be no longer
    rate_limits: Mapping[str, float] = field(default_factory=dict)  # target's name -> draft tokens a second, at most

    def __post_init__(self) -> None:
        _one_of("scheduling", self.scheduling, get_args(Scheduling))
        for name, weight in self.weights.items():
            if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
                raise ConfigError(f"the weight of '{name}' must be {MIN_WEIGHT} to {MAX_WEIGHT:g}, got {weight:g}")
        if self.admission not in ("off", "n_max"):
            if not isinstance(self.admission, int):
                raise ConfigError(f"admission must be off, n_max or a number of targets, not '{self.admission}'")
            _at_least("admission", self.admission, 1)
        for setting in ("weights", "slo_round_ms"):
            if getattr(self, setting) and self.scheduling == "fifo":
                raise ConfigError(f"{setting} are of fair scheduling: with fifo they would do nothing")
        for setting in ("slo_round_ms", "rate_limits"):
            for name, number in getattr(self, setting).items():
                if not 0 < number < float("inf"):
                    raise ConfigError(f"{setting} must be above 0, that of '{name}' is {number:g}")
        _one_of("run_ahead", self.run_ahead, get_args(RunAhead))
        _one_of("share_prefixes", self.share_prefixes, get_args(PrefixScope))
        for name in ("max_targets", "max_tags", "max_draft_tokens", "prefill_chunk"):
            _at_least(name, getattr(self, name), 1)
        if isinstance(self.max_batch, int):
            _at_least("max_batch", self.max_batch, 1)
        elif self.max_batch != "auto":
            raise ConfigError(f"max_batch must be auto or a number of sessions, not '{self.max_batch}'")
        _at_least("lease_s", self.lease_s, MIN_LEASE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """How the sequences of a target share forwards.

    `ragged` keeps the target's tokens in any dtype, the others in float32, and in bfloat16 but for near-ties.
    """

    method: BatchingMethod = "ragged"
    admission: BatchAdmission = "continuous"  # fixed: nobody joins a batch until all of it have ended
    prompts: Literal["beside", "first"] = "beside"  # first: rounds wait while prompts are read, so batches are full
    window: int | None = None  # exspec: sequences with cache rows, among which one length is sought; None = 4 batches
    max_passed_over: int | None = MAX_PASSED_OVER  # exspec: steps before who was left out goes first; None = no bound

    def __post_init__(self) -> None:
        _one_of("batching", self.method, BATCHINGS)
        _one_of("admission", self.admission, get_args(BatchAdmission))
        _one_of("prompts", self.prompts, ("beside", "first"))
        if self.window is not None:
            _at_least("window", self.window, 1)
        if self.max_passed_over is not None and self.max_passed_over < 1:
            raise ConfigError(f"max_passed_over must be at least 1, or None for no bound, got {self.max_passed_over}")
        if self.method != "exspec" and (self.window, self.max_passed_over) != (None, MAX_PASSED_OVER):
            raise ConfigError(f"window and max_passed_over are of exspec, and batching is {self.method}")
        if self.method == "exspec" and self.admission == "fixed":
            raise ConfigError("exspec refills its window whenever a sequence ends: it has no fixed batches")

    def num_rows(self, batch_size: int) -> int:
        """Sequences that hold a cache row at once. Raises: ConfigError if a window is smaller than the batch."""
        if self.method != "exspec":
            return batch_size
        if self.window is None:
            return WINDOW_BATCHES * batch_size
        if self.window < batch_size:
            raise ConfigError(
                f"exspec chooses batches of {batch_size} from its window: {self.window} is too few, "
                f"{WINDOW_BATCHES * batch_size} is the default"
            )
        return self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """A target server."""

    name: str = "target"  # shown in metrics, tables and traces; unique within a star
    host: str = "127.0.0.1"
    port: int = 7800  # 0 = any free one
    keys: str | None = None
    insecure: bool = False
    max_num_seqs: int = 8  # sequences decoded at once
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    max_num_queued_reqs: int = 256  # waiting line; beyond it requests are rejected with 503
    prefill_chunk: int = 256  # prompt tokens of one forward
    lease_s: float = 10.0  # requests of a gateway silent for longer are aborted
    shutdown_timeout_s: float = 10.0  # running requests may take so long after SIGTERM

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_queued_reqs", "prefill_chunk"):
            _at_least(name, getattr(self, name), 1)
        _at_least("lease_s", self.lease_s, MIN_SERVING_LEASE_S)
        _at_least("shutdown_timeout_s", self.shutdown_timeout_s, 0)
        self.batching.num_rows(self.max_num_seqs)  # refuses a window that is too small

    @property
    def num_rows(self) -> int:
        """Cache rows that the target uses at once."""
        return self.batching.num_rows(self.max_num_seqs)


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
        if self.api_key == "":
            raise ConfigError("the API key is empty: give one, or leave it out to ask for none")


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a config dataclass from a mapping.

    Args:
        where: what the mapping is, for the error's sentence.
    Raises: ConfigError naming an unknown key or word and the nearest known one, or a value out of range.
    """
    _check_keys(kind, values, where)
    _check_words(kind, values, where)
    try:
        return msgspec.convert(dict(values), kind)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_kind_sentence(error)}") from error


def _kind_sentence(error: msgspec.ValidationError) -> str:
    """'key: expected int, got str' of msgspec's "Expected `int`, got `str` - at `$.key`"."""
    what, _, at = str(error).replace("`", "").partition(" - at $.")
    return f"{at}: {what[:1].lower()}{what[1:]}" if at else what


def _check_keys(kind: type, values: Mapping[str, Any], where: str) -> None:
    names = [each.name for each in fields(kind)]
    for key in values:
        if key not in names:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, names)}")


def _check_words(kind: type, values: Mapping[str, Any], where: str) -> None:
    """Of the fields that take one of a few words."""
    for name, hint in get_type_hints(kind).items():
        word = values.get(name)
        if get_origin(hint) is Literal and isinstance(word, str):
            _one_of(f"{where}: {name}", word, get_args(hint))


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
