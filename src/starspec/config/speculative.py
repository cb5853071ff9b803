"""What drafts for a target, how far, and where: `--speculative-config`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, get_args

from starspec.config.checks import at_least, build, check_words, is_probability, one_of, without_vllm_defaults
from starspec.config.hub import RunAhead
from starspec.config.limits import MAX_DRAFT_TOKENS, MAX_LOOKUP, MAX_TOP_K
from starspec.config.model import ModelConfig, Quantization, check_device
from starspec.config.option import LARGEST
from starspec.draft_methods import DRAFT_METHODS, DraftMethod, MethodTraits
from starspec.errors import ConfigError
from starspec.speculation.acceptance import SampleMethod
from starspec.speculation.budget import MAX_FORWARDED, DraftBudget

Policy = Literal["goodput", "fixed", "confidence", "adaedl", "dsde"]
DEPTHS: Final[Mapping[Policy, int]] = {"goodput": 8, "fixed": 4, "confidence": 8, "adaedl": 8, "dsde": 8}
TREE_DEPTH: Final = 4  # deeper trees need as many forwards as deeper chains, for paths that are rarely right
DOUBT: Final = 0.4  # `draft_p_min` under the policies "confidence" and "goodput" if none is given
DSDE_NUM_STATED: Final = 16  # likeliest tokens after each node, from which policy "dsde" learns the divergence
OF_THE_DRAFT: Final = ("model", "quantization", "device", "run_ahead", "max_model_len", "feature_layers")
"""Fields of a `SpeculativeConfig` that say what the draft is and how it runs; the hub alone needs them."""
OF_LOOKUP: Final = ("prompt_lookup_min", "prompt_lookup_max")
"""Those of n-grams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """`"remote": {...}` of a speculative config: where the hub is and what to do without it."""

    endpoint: str | None = None  # tcp://host:port of the hub's public port; None = a hub of one's own in this process
    keys: str | None = None  # folder made by `starspec keygen`; required unless the host is loopback
    insecure: bool = False  # allow a host that is not loopback without keys
    deadline_ms: float | None = None  # longest wait for proposals, whether or not it pays; None = follows recent rounds
    fallback: Literal["ngram", "none"] = "none"  # drafter of rounds that the hub misses

    def __post_init__(self) -> None:
        check_words(self, "remote.")
        if self.deadline_ms is not None and not 0 < self.deadline_ms <= LARGEST:
            raise ConfigError(f"remote.deadline_ms must be positive and at most {LARGEST}, got {self.deadline_ms}")

    @property
    def given(self) -> list[str]:
        """The keys that differ from their defaults."""
        return [f"remote.{each.name}" for each in fields(self) if getattr(self, each.name) != each.default]

    def check_unused(self) -> None:
        """Raises: ConfigError that names the keys that were set: none has an effect without a hub elsewhere."""
        if self.given:
            raise ConfigError(
                f"{', '.join(self.given)}: for target servers with a hub elsewhere, without effect in one process;"
                " leave it out, and give the draft's model, or method 'ngram'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthConfig:
    """`"length": {...}` of a speculative config: how far to speculate. `docs/lengths.md` compares the policies."""

    policy: Policy = "goodput"

    def __post_init__(self) -> None:
        check_words(self, "length.")


FIXED_LENGTH: Final = LengthConfig(policy="fixed")  # of measurements that compare other things than lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """`--speculative-config`: vLLM's keys where the meaning is the same, ours under `remote` and `length`."""

    method: DraftMethod = "draft_model"
    model: str | None = None  # draft or EAGLE head; None with `remote.endpoint` (the hub has it) or method ngram
    quantization: Quantization = "none"  # of the draft's weights
    device: str | None = None  # of the draft; None = as the target's
    run_ahead: RunAhead | bool | None = None  # as --run-ahead of a hub; true = auto, false = off, None = not said
    num_speculative_tokens: int | None = None  # K: depth of the chain, 0..64, at most; None = as the policy has it
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()  # (first, last, K) by sequences
    eagle_topk: int = 1  # trees as SGLang names them: children of a node, 1 = a chain
    num_steps: int | None = None  # depth of the tree; None = num_speculative_tokens
    num_draft_tokens: int | None = None  # nodes of the tree and its root (so K + 1 for a chain); None = all that fit
    draft_p_min: float = 0.0  # `DRAFT_P_MIN` in option.py has its meaning
    disable_by_batch_size: int | None = None  # rounds of more sequences than this draft nothing; None = all draft
    max_model_len: int | None = None  # of the draft
    feature_layers: tuple[int, ...] | None = None  # input of an EAGLE head: hidden states; None = as its config says
    prompt_lookup_min: int = 2  # shortest n-gram that method ngram looks up
    prompt_lookup_max: int = 4  # longest
    rejection_sample_method: SampleMethod = (
        "coupled"  # coupled: the target's own draw decides; rejection: its distribution
    )
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    length: LengthConfig = field(default_factory=LengthConfig)

    def __post_init__(self) -> None:
        check_words(self)
        if not 0 <= (self.num_speculative_tokens or 0) <= MAX_DRAFT_TOKENS:
            raise ConfigError(f"num_speculative_tokens must be 0 to {MAX_DRAFT_TOKENS}")
        self._check_tree()
        self._check_policy()
        self._check_hub()
        _check_batch_sizes(self.num_speculative_tokens_per_batch_size)
        if self.disable_by_batch_size is not None:
            at_least("disable_by_batch_size", self.disable_by_batch_size, 1)
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max <= MAX_LOOKUP:
            raise ConfigError(f"need 1 <= prompt_lookup_min <= prompt_lookup_max <= {MAX_LOOKUP}")
        if self.model is not None and not self.traits.needs_model:
            raise ConfigError(f"method '{self.method}' takes no model")

    @property
    def traits(self) -> MethodTraits:
        return DRAFT_METHODS[self.method]

    @property
    def given(self) -> list[str]:
        """The fields that differ from their defaults."""
        defaults = SpeculativeConfig()
        return [each.name for each in fields(self) if getattr(self, each.name) != getattr(defaults, each.name)]

    def check_alone(self) -> None:
        """Raises: ConfigError that names what has no effect in one process: settings for a hub elsewhere, or for
        n-grams that nothing looks up.
        """
        self.remote.check_unused()
        if self.traits.needs_model and (of_lookup := [name for name in self.given if name in OF_LOOKUP]):
            raise ConfigError(f"{', '.join(of_lookup)}: for method 'ngram', and a model drafts here; leave it out")

    def without_draft(self) -> SpeculativeConfig:
        """What is left for a target whose hub has the draft."""
        defaults: dict[str, Any] = {each.name: each.default for each in fields(self) if each.name in OF_THE_DRAFT}
        return replace(self, **defaults)

    @property
    def run_ahead_mode(self) -> RunAhead | None:
        """`run_ahead` in the hub's words; None = not said."""
        if isinstance(self.run_ahead, bool):
            return "auto" if self.run_ahead else "off"
        return self.run_ahead

    @property
    def runs_ahead(self) -> bool:
        """Whether the hub is told to run ahead, so that it cannot take turns with its target."""
        return self.run_ahead_mode not in (None, "off")

    def draft_model(self, base: ModelConfig) -> ModelConfig | None:
        """The draft's model, which runs as `base` does except for what this config says; None if it has no model.

        Raises: ConfigError if `base` has memory for keys and values, and the method keeps none.
        """
        if base.kv_budget_bytes is not None and not self.traits.needs_model:
            raise ConfigError(f"--kv-budget is for draft models: method '{self.method}' keeps no keys and values")
        if self.model is None:
            return None
        return replace(
            base,
            model=self.model,
            quantization=self.quantization,
            device=self.device or base.device,
            numerics="fast",  # the last bits of a draft decide nothing
            max_model_len=self.max_model_len or base.max_model_len,
            is_head=self.traits.reads_features,
        )

    @property
    def budget(self) -> DraftBudget:
        """What a round asks for. `num_draft_tokens` counts the root here, as in SGLang, and not there."""
        policy, num_steps = self.length.policy, self.depth
        p_min = self.draft_p_min or self._usual_p_min
        num_stated = DSDE_NUM_STATED if policy == "dsde" else 0
        if self.eagle_topk == 1 or num_steps == 0:
            return replace(DraftBudget.chain(num_steps, p_min), num_stated=num_stated)
        num_nodes = MAX_DRAFT_TOKENS if self.num_draft_tokens is None else self.num_draft_tokens - 1
        has_logprobs = policy == "goodput" and self.traits.knows_probabilities
        shape = (num_nodes, num_steps, self.eagle_topk, p_min)
        tree = DraftBudget(*shape, has_logprobs=has_logprobs, num_stated=num_stated)
        return replace(tree, num_draft_tokens=min(num_nodes, tree.max_nodes))

    @property
    def num_nodes_asked(self) -> int:
        """Draft tokens of a round that the config names itself, at most; 0 if it leaves that to the policy."""
        is_asked = (self.num_speculative_tokens, self.num_steps, self.num_draft_tokens) != (None, None, None)
        return self.budget.num_draft_tokens if is_asked else 0

    @property
    def _usual_p_min(self) -> float:
        """Where a draft ends in doubt, if nothing is said about it.

        What was drawn for rejection sampling may be unlikely and yet be accepted.
        """
        if self.length.policy == "confidence":
            return DOUBT
        is_told = self.traits.knows_probabilities and self.rejection_sample_method == "coupled" and self.depth > 0
        return DOUBT if self.length.policy == "goodput" and is_told else 0.0

    @property
    def depth(self) -> int:
        """Steps of a draft: of all under policy "fixed", at most under the others."""
        given = self.num_speculative_tokens if self.num_steps is None else self.num_steps
        if given is not None:
            return given
        return DEPTHS[self.length.policy] if self.eagle_topk == 1 else TREE_DEPTH

    @property
    def request_policies(self) -> dict[Policy, SpeculativeConfig]:
        """The length policies that fit these drafts, each with the config that has it. A request may ask for them."""
        found: dict[Policy, SpeculativeConfig] = {}
        for policy in get_args(Policy):
            with suppress(ConfigError):
                found[policy] = replace(self, length=LengthConfig(policy=policy))
        return found

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
        is_probability("draft_p_min", self.draft_p_min)
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

    def _check_hub(self) -> None:
        """Raises: ConfigError if settings of a draft's model are given, and there is none, or it is elsewhere."""
        if self.run_ahead_mode is not None:
            one_of("run_ahead", self.run_ahead_mode, get_args(RunAhead))
        if self.device is not None:
            check_device(self.device)
        given = {"device": self.device is not None, "run_ahead": self.run_ahead_mode is not None}
        names = " and ".join(name for name, is_given in given.items() if is_given)
        if names and self.remote.endpoint is not None:
            raise ConfigError(f"{names}: how a draft elsewhere runs is told to its hub: leave it out here")
        given |= {
            "quantization": self.quantization != "none",
            "max_model_len": self.max_model_len is not None,
            "feature_layers": self.feature_layers is not None,
        }
        names = " and ".join(name for name, is_given in given.items() if is_given)
        if names and not self.traits.needs_model:
            raise ConfigError(f"{names}: for drafts with a model, and method '{self.method}' has none: leave it out")

    def _check_policy(self) -> None:
        policy = self.length.policy
        if not is_suited(policy, self.method):
            raise ConfigError(
                f"length.policy '{policy}' needs a draft that knows probabilities, and method '{self.method}' knows"
                " none: take 'goodput' or 'fixed'"
            )
        if policy == "adaedl" and self.eagle_topk > 1:
            raise ConfigError("length.policy 'adaedl' is for chains: leave eagle_topk at 1")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SpeculativeConfig:
        """Build from parsed JSON; dashes in keys count as underscores.

        Raises: ConfigError naming the unknown key and the nearest known one, or what is out of range or said twice.
        """
        where = "speculative config"
        known = without_vllm_defaults({str(key).replace("-", "_"): value for key, value in values.items()}, where)
        for key, part in (("remote", RemoteConfig), ("length", LengthConfig)):
            if isinstance(known.get(key), Mapping):
                known[key] = build(part, known[key], f"{where}, {key}")
        if isinstance(known.get("run_ahead"), str):
            one_of(f"{where}: run_ahead", known["run_ahead"], get_args(RunAhead))
        config = build(cls, known, where)
        depths = (known.get("num_speculative_tokens"), config.num_steps)
        if None not in depths and depths[0] != depths[1]:
            raise ConfigError(
                f"num_speculative_tokens {depths[0]} and num_steps {depths[1]} are two words for the depth of a draft:"
                " leave one out"
            )
        return config


def is_suited(policy: Policy, method: DraftMethod) -> bool:
    """Whether drafts of this method bring what the policy needs: all but two need the draft's probabilities."""
    return policy in ("goodput", "fixed") or DRAFT_METHODS[method].knows_probabilities


def _check_batch_sizes(table: tuple[tuple[int, int, int], ...]) -> None:
    """Raises: ConfigError if a row of `num_speculative_tokens_per_batch_size` is out of range or overlaps another."""
    name, end = "num_speculative_tokens_per_batch_size", 0
    for first, last, num_steps in table:
        if not (end < first <= last and 0 <= num_steps <= MAX_DRAFT_TOKENS):
            raise ConfigError(
                f"{name}: row [{first}, {last}, {num_steps}] must be [first, last, K] with first and last batch size"
                f" (at least 1, rows in order, without overlap) and K from 0 to {MAX_DRAFT_TOKENS}"
            )
        end = last
