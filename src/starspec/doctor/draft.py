"""What differs between kinds of drafts when one is examined, and causal LMs, the plain kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import Agreement, Sample, measure_agreement
from starspec.doctor.layers import LayerChoice
from starspec.doctor.outlook import Replayed, Seen
from starspec.doctor.reading import CausalReader
from starspec.harness.step_times import StepSeconds, time_steps
from starspec.harness.workbench import Workbench
from starspec.hub.grow import CausalDrafter
from starspec.models.loading.load import load_runner
from starspec.models.runner import ModelInfo


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
