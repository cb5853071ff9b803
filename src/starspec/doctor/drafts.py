"""The kinds of draft that can be examined: a causal LM, and an EAGLE head with the layers that suit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import comb
from typing import Final, Protocol

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import Agreement, AnswerScorer, CausalScorer, HeadScorer, Sample, measure_agreement
from starspec.doctor.outlook import DecodedChains, Replayed, Seen
from starspec.harness.decode import decode, make_engine
from starspec.harness.step_times import StepSeconds, time_steps
from starspec.harness.workbench import Workbench
from starspec.hub.causal import CausalDrafter
from starspec.local_star import LocalHub
from starspec.models.heads.checkpoint import read_feature_layers
from starspec.models.heads.head import EagleHead
from starspec.models.heads.load import TargetTensors, load_head
from starspec.models.loading.load import load_runner
from starspec.models.runner import ModelInfo
from starspec.policy.length.fixed import FixedLength
from starspec.speculation.budget import DraftBudget
from starspec.stats import AcceptanceStats, TargetStats

ERROR_RATE: Final = 0.01  # how often one of two equally good options may be called the better one


@dataclass(frozen=True, slots=True)
class LayerOption:
    """One interpretation of an EAGLE head's list of layers."""

    feature_layers: tuple[int, ...]  # of the target's hidden states
    is_default: bool  # whether it is used without a setting
    reason: str
    first_choice_rate: float  # of the greedy sample
    num_alone_right: int  # positions at which this option is right and the other is wrong


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Two options, compared."""

    used: LayerOption  # the default, unless the other is better
    other: LayerOption
    num_positions: int

    @property
    def is_settled(self) -> bool:
        """Whether the difference is larger than chance. Otherwise the default is used."""
        return p_value(self.used.num_alone_right, self.other.num_alone_right) <= ERROR_RATE


def choose_layers(
    default: tuple[int, ...],
    reason: str,
    other: tuple[int, ...],
    default_right: Sequence[bool],
    other_right: Sequence[bool],
) -> LayerChoice:
    """Compare two options. Positions at which exactly one is right decide: a sign test (McNemar 1947).

    Args:
        reason: why the default is the default.
        default_right, other_right: whether each option's first choice is right, at the same positions.
    """
    pairs = list(zip(default_right, other_right, strict=True))
    only_default, only_other = (sum(one > two for one, two in pairs), sum(one < two for one, two in pairs))
    own = LayerOption(default, True, reason, _share(default_right), only_default)
    theirs = LayerOption(other, False, "the other interpretation of its list", _share(other_right), only_other)
    if only_other > only_default and p_value(only_default, only_other) <= ERROR_RATE:
        return LayerChoice(theirs, own, len(pairs))
    return LayerChoice(own, theirs, len(pairs))


def p_value(num_one: int, num_other: int) -> float:
    """Probability of a split at least as uneven between equals: the two-sided binomial test of one half."""
    num = num_one + num_other
    tail = sum(comb(num, count) for count in range(min(num_one, num_other) + 1))
    return min(1.0, 2 * tail / (1 << num))


def _share(is_right: Sequence[bool]) -> float:
    return sum(is_right) / max(1, len(is_right))


class ExaminedDraft(Protocol):
    """A draft of any kind, loaded with its target."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def layer_choice(self) -> LayerChoice | None:
        """Which hidden states it uses, if its files can be interpreted in two ways."""
        ...

    @property
    def scorer(self) -> AnswerScorer:
        """Gives its logits for answers that are known."""
        ...

    def agreement(self, sample: Sample) -> Agreement:
        """How often its first choice is right, given all tokens before."""
        ...

    def rounds(self, sample: Sample, agreement: Agreement) -> Seen:
        """The statistics of rounds."""
        ...

    def step_seconds(self, max_tokens: int) -> StepSeconds:
        """Times of its draft steps, and of the target's forwards over 1 to `max_tokens` tokens."""
        ...


class CausalDraft:
    """A causal LM.

    Raises: ModelError if it cannot be loaded.
    """

    def __init__(self, bench: Workbench, speculative: SpeculativeConfig) -> None:
        self._bench = bench
        self._runner = load_runner(draft_config(bench.config, speculative))
        self.layer_choice: LayerChoice | None = None
        self.scorer: AnswerScorer = CausalScorer(self._runner)

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    def agreement(self, sample: Sample) -> Agreement:
        return measure_agreement(self.scorer, sample, CausalScorer(self._bench.runner))

    def rounds(self, sample: Sample, agreement: Agreement) -> Seen:  # noqa: ARG002
        return Replayed(agreement.first)

    def step_seconds(self, max_tokens: int) -> StepSeconds:
        return time_steps(self._bench.runner, CausalDrafter(self._runner), max_tokens=max_tokens)


def draft_config(target: ModelConfig, speculative: SpeculativeConfig) -> ModelConfig:
    """The draft's config: as the target's, with its own weights and one row."""
    assert speculative.model is not None
    return replace(
        target,
        model=speculative.model,
        quantization=speculative.quantization,
        numerics="fast",  # the last bits of a draft do not matter
        num_rows=1,
    )


class HeadDraft:
    """An EAGLE head, with the interpretation of its layers that fits.

    Args:
        sample: for the comparison of both options.
        max_draft_tokens: K of the decoded chains.
    Raises: ModelError if it cannot be loaded; ConfigError if it is of another method.
    """

    def __init__(self, bench: Workbench, speculative: SpeculativeConfig, sample: Sample, max_draft_tokens: int) -> None:
        self._bench = bench
        self._chain = FixedLength(DraftBudget.chain(max_draft_tokens))
        self._head, self.layer_choice = best_layers(bench, speculative, sample)
        chosen = replace(speculative, feature_layers=self._head.spec.feature_layers)
        self.scorer: AnswerScorer = HeadScorer(self._head, bench.runner)
        self._hub = LocalHub(bench.config, bench.runner.info, chosen, bench.tokenizer)

    @property
    def info(self) -> ModelInfo:
        return self._head.info

    def agreement(self, sample: Sample) -> Agreement:
        return measure_agreement(self.scorer, sample, CausalScorer(self._bench.runner))

    def rounds(self, sample: Sample, agreement: Agreement) -> Seen:  # noqa: ARG002
        bench = self._bench
        engine = make_engine(bench.runner, bench.tokenizer, self._hub.drafts(self._chain, TargetStats()))
        total = AcceptanceStats()
        for answer in decode(engine, sample.jobs, batch_size=bench.runner.cache.num_rows):
            total.add(answer.stats.acceptance)
        return DecodedChains(total.num_forwards, total.num_accepted_tokens_per_pos)

    def step_seconds(self, max_tokens: int) -> StepSeconds:
        layers = self._head.spec.feature_layers
        return time_steps(self._bench.runner, self._hub.loaded.drafter, layers, max_tokens=max_tokens)


def best_layers(
    bench: Workbench, speculative: SpeculativeConfig, sample: Sample
) -> tuple[EagleHead, LayerChoice | None]:
    """Load a head with each interpretation of its list of layers, and keep the better one.

    Returns: the head, and how it was chosen; None if there is only one interpretation.
    """
    assert speculative.model is not None
    target, config = bench.config.model, draft_config(bench.config, speculative)
    head = load_head(config, target, speculative.feature_layers)
    said = read_feature_layers(speculative.model, target=TargetTensors.of(target).shape)
    if speculative.feature_layers is not None or said.other is None:
        return head, None
    other = load_head(config, target, said.other)
    default_right, other_right = (_right(bench, each, sample) for each in (head, other))
    choice = choose_layers(said.layers, said.reason, said.other, default_right, other_right)
    return (head if choice.used.is_default else other), choice


def _right(bench: Workbench, head: EagleHead, sample: Sample) -> list[bool]:
    """Whether the head's first choice is right, at every position of all answers."""
    return list(chain.from_iterable(measure_agreement(HeadScorer(head, bench.runner), sample).first))
