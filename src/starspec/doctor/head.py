"""An EAGLE head under examination: which layers it reads, and what real chains of it give.

Along a chain a head reads its own hidden states in the place of the target's, so its chance at depth 1, which reading
answers tells, says little of the next depths: those are taken from decoding.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from starspec.config import SpeculativeConfig
from starspec.doctor.agreement import Agreement, Sample, measure_agreement
from starspec.doctor.draft import draft_config
from starspec.doctor.layers import LayerChoice, choose_layers
from starspec.doctor.outlook import DecodedChains, Seen
from starspec.doctor.reading import HeadReader
from starspec.harness.decode import decode, make_engine
from starspec.harness.step_times import StepSeconds, time_steps
from starspec.harness.workbench import Workbench
from starspec.local_star import LocalHub
from starspec.models.heads.checkpoint import read_feature_layers
from starspec.models.heads.head import EagleHead
from starspec.models.heads.load import TargetTensors, load_head
from starspec.models.runner import ModelInfo
from starspec.policy.length.fixed import FixedLength
from starspec.speculation.budget import DraftBudget
from starspec.stats import AcceptanceStats, TargetStats


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
