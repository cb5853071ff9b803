"""The kinds of draft that can be examined: a causal LM, and an EAGLE head with the layers that suit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import comb
from typing import Final, Protocol

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import Agreement, CausalReader, HeadReader, Sample, measure_agreement
from starspec.doctor.outlook import DecodedChains, Replayed, Seen
from starspec.harness.decode import decode, make_engine
from starspec.harness.step_times import StepSeconds, time_steps
from starspec.harness.workbench import Workbench
from starspec.hub.grow import CausalDrafter
from starspec.local_star import LocalHub
from starspec.models.heads.checkpoint import read_feature_layers
from starspec.models.heads.head import EagleHead
from starspec.models.heads.load import TargetTensors, load_head
from starspec.models.loading.load import load_runner
from starspec.models.runner import ModelInfo
from starspec.policy.length.fixed import FixedLength
from starspec.speculation.budget import DraftBudget
from starspec.stats import AcceptanceStats, TargetStats

ERROR_RATE: Final = 0.01  # how often one of two readings that fit equally well may be called the better


@dataclass(frozen=True, slots=True)
class LayerReading:
    """One way to read which layers an EAGLE head was trained on."""

    feature_layers: tuple[int, ...]  # of the target's hidden states
    is_default: bool  # what is read if nobody says otherwise
    reason: str
    first_choice_rate: float  # of the greedy sample
    num_alone_right: int  # positions of it at which this reading is right and the other is not


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Two readings, compared."""

    used: LayerReading  # the default unless the other fits better
    other: LayerReading
    num_positions: int

    @property
    def is_settled(self) -> bool:
        """Whether the difference is more than chance would give; else the default is used for want of better."""
        return p_value(self.used.num_alone_right, self.other.num_alone_right) <= ERROR_RATE


def choose_layers(
    default: tuple[int, ...],
    reason: str,
    other: tuple[int, ...],
    default_right: Sequence[bool],
    other_right: Sequence[bool],
) -> LayerChoice:
    """Compare two readings.

    Args:
        reason: why the default is the default.
        default_right, other_right: whether each reading's first choice is right, at the same positions.
    """
    pairs = list(zip(default_right, other_right, strict=True))
    only_default, only_other = (sum(one > two for one, two in pairs), sum(one < two for one, two in pairs))
    own = LayerReading(default, True, reason, _share(default_right), only_default)
    theirs = LayerReading(other, False, "the other reading of its list", _share(other_right), only_other)
    if only_other > only_default and p_value(only_default, only_other) <= ERROR_RATE:
        return LayerChoice(theirs, own, len(pairs))
    return LayerChoice(own, theirs, len(pairs))


def p_value(num_one: int, num_other: int) -> float:
    """How likely so uneven a split, either way, is between two equals: the two-sided binomial test of one half."""
    num = num_one + num_other
    tail = sum(comb(num, count) for count in range(min(num_one, num_other) + 1))
    return min(1.0, 2 * tail / (1 << num))


def _share(is_right: Sequence[bool]) -> float:
    return sum(is_right) / max(1, len(is_right))


class ExaminedDraft(Protocol):
    """A draft of any kind, loaded beside its target."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def layer_choice(self) -> LayerChoice | None:
        """Which hidden states it reads, if that can be meant in two ways."""
        ...

    def agreement(self, sample: Sample) -> Agreement:
        """How often it guesses right where it knows all that the target has said."""
        ...

    def rounds(self, sample: Sample, agreement: Agreement) -> Seen:
        """What rounds would be like."""
        ...

    def step_seconds(self, max_tokens: int) -> StepSeconds:
        """Its layers, and the target's forwards over 1 .. `max_tokens` tokens."""
        ...


class CausalDraft:
    """A causal LM.

    Raises: ModelError if it cannot be loaded.
    """

    def __init__(self, bench: Workbench, speculative: SpeculativeConfig) -> None:
        self._bench = bench
        self._runner = load_runner(draft_config(bench.config, speculative))
        self.layer_choice: LayerChoice | None = None

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    def agreement(self, sample: Sample) -> Agreement:
        return measure_agreement(CausalReader(self._runner), sample)

    def rounds(self, sample: Sample, agreement: Agreement) -> Seen:  # noqa: ARG002
        return Replayed(agreement.first)

    def step_seconds(self, max_tokens: int) -> StepSeconds:
        return time_steps(self._bench.runner, CausalDrafter(self._runner), max_tokens=max_tokens)


def draft_config(target: ModelConfig, speculative: SpeculativeConfig) -> ModelConfig:
    """The draft runs as its target does, but for its weights, and one sequence at a time."""
    assert speculative.model is not None
    return replace(
        target,
        model=speculative.model,
        quantization=speculative.quantization,
        numerics="fast",  # a draft's last bits decide nothing
        num_rows=1,
    )


class HeadDraft:
    """An EAGLE head, with the layers that suit it.

    Args:
        sample: what both readings of its layers are tried on.
        max_draft_tokens: K of the chains that are decoded.
    Raises: ModelError if it cannot be loaded; ConfigError if it is of another method.
    """

    def __init__(self, bench: Workbench, speculative: SpeculativeConfig, sample: Sample, max_draft_tokens: int) -> None:
        self._bench = bench
        self._chain = FixedLength(DraftBudget.chain(max_draft_tokens))
        self._head, self.layer_choice = best_reading(bench, speculative, sample)
        chosen = replace(speculative, feature_layers=self._head.spec.feature_layers)
        self._hub = LocalHub(bench.config, bench.runner.info, chosen, bench.tokenizer)

    @property
    def info(self) -> ModelInfo:
        return self._head.info

    def agreement(self, sample: Sample) -> Agreement:
        return measure_agreement(HeadReader(self._head, self._bench.runner), sample)

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


def best_reading(
    bench: Workbench, speculative: SpeculativeConfig, sample: Sample
) -> tuple[EagleHead, LayerChoice | None]:
    """Load a head, under both readings of its list of layers if there are two, and keep the one that fits.

    Returns: the head, and how its reading was chosen; None if there was no choice.
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
    return list(chain.from_iterable(measure_agreement(HeadReader(head, bench.runner), sample).first))
