"""`starspec doctor`: check a pair, measure it, and forecast its speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import Agreement, Sample
from starspec.doctor.checks import (
    Check,
    check_arithmetic,
    check_head,
    check_lengths,
    check_memory,
    check_sizes,
    check_tokenizers,
)
from starspec.doctor.drafts import CausalDraft, ExaminedDraft, HeadDraft, LayerChoice
from starspec.doctor.outlook import Forecast, Seen, StepTimes, best_forecast, forecast
from starspec.doctor.rounding import Rounding, examine_rounding, load_stages
from starspec.doctor.trees import TreeAdvice, advise_trees, check_same_models, check_tree_report, read_tree_report
from starspec.engine.drafts import NoDrafts
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, check_fit
from starspec.harness.decode import decode, make_engine
from starspec.harness.provenance import Provenance, collect_provenance
from starspec.harness.tree_report import TreeReport
from starspec.harness.workbench import GREEDY, Sampling, Workbench
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.models.resolve import DraftSpec, resolve_draft

SAMPLINGS = (GREEDY, Sampling(temperature=0.7))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """The forecasts under one sampling setting."""

    sampling: str
    num_positions: int
    first_choice_rate: float  # the target's token is the draft's first choice: what coupled verification accepts
    beta: float | None  # mean of sum min(p, q) (StarSD, equation 1): what rejection sampling accepts; None = not known
    first_four_rate: float  # it is among the draft's first four
    sayable_rate: float  # it is in the draft's vocabulary
    forecasts: list[Forecast]  # one for each K, from 0
    best: Forecast | None  # None = do not speculate


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Everything that the doctor found."""

    provenance: Provenance
    checks: list[Check]
    times: StepTimes | None = None  # None = the pair cannot be used, and nothing below is known
    layers: LayerChoice | None = None  # of an EAGLE head with two interpretations of its layers
    prospects: list[Prospect] = field(default_factory=list)
    trees: list[TreeAdvice] = field(default_factory=list)  # from a report of `bench tree`
    rounding: Rounding | None = None  # of hidden states between stages; None = nobody asked

    @property
    def is_usable(self) -> bool:
        return all(check.severity != "fatal" for check in self.checks)


def examine(
    target: ModelConfig,
    draft: SpeculativeConfig,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    max_draft_tokens: int,
    link_s: float,
    tree_report: Path | None = None,
    num_stages: int | None = None,
) -> Examination:
    """Check a pair, and measure it if it can be used.

    Args:
        draft: a causal LM or an EAGLE head; its draft length does not matter.
        prompts: the target answers them plainly, with `max_tokens` tokens each.
        max_draft_tokens: largest K to forecast.
        link_s: round trip between target and hub, added to each round.
        tree_report: what `bench tree` saved for this pair.
        num_stages: into which the target is cut to see what 8-bit hidden states change. None = it is not.
    Raises: ModelError if one of the models cannot be loaded; ConfigError if there is no draft, or if the report cannot
        be read or belongs to another pair, or the target cannot be cut so; as check_fit.
    """
    if draft.model is None:
        raise ConfigError("there is nothing to examine: give --draft")
    report = None if tree_report is None else read_tree_report(tree_report)
    provenance = collect_provenance({"target": target.model, "draft": draft.model})  # hashes weights
    if report is not None and tree_report is not None:
        check_same_models(report, tree_report, provenance.models)
    spec = resolve_draft(draft)
    checks = check_pair(target, spec)
    if all(check.severity != "fatal" for check in checks):
        checks.append(check_memory(target, spec))
    if any(check.severity == "fatal" for check in checks):
        return Examination(provenance=provenance, checks=checks)
    check_fit(prompts, target)
    stages = load_stages(target, num_stages) if num_stages else []
    bench = Workbench(target)
    samples = [sample_answers(bench, prompts, each, max_tokens) for each in SAMPLINGS]
    examined = load_draft(bench, spec, samples[0], max_draft_tokens)
    checks.append(check_lengths(bench.runner.info, examined.info))
    checks.append(check_sizes(bench.runner.info, examined.info))
    checks += check_arithmetic(target.dtype, target.device)
    if report is not None:
        told = _told_layers(examined, draft, report)
        checks.append(check_tree_report(report, provenance, target, draft.quantization, told))
    steps = examined.step_seconds(max_draft_tokens + 1)
    giving_s = (
        max(0.0, steps.giving_s - steps.target_s[0]) if spec.head else 0.0
    )  # cost of hidden states in every round
    verify_s = [steps.target_s[0], *(each + giving_s for each in steps.target_s[1:])]
    times = StepTimes(draft_s=steps.draft_s, verify_s=verify_s, link_s=link_s)
    return Examination(
        provenance=provenance,
        checks=checks,
        times=times,
        layers=examined.layer_choice,
        prospects=[_prospect(examined, sample, times) for sample in samples],
        trees=[] if report is None else advise_trees(report),
        rounding=examine_rounding(stages, samples[0]) if stages else None,
    )


def check_pair(target: ModelConfig, draft: DraftSpec) -> list[Check]:
    """What can be checked of a pair before its models are loaded."""
    assert draft.config.model is not None
    tokenizer = load_tokenizer(target.model)
    if draft.head is not None:
        return check_head(target.model, draft.config, tokenizer)
    return check_tokenizers(tokenizer, load_tokenizer(draft.config.model))


def sample_answers(bench: Workbench, prompts: Sequence[Prompt], sampling: Sampling, max_tokens: int) -> Sample:
    """The target's own answers, without drafts."""
    jobs = bench.jobs(prompts, sampling, max_tokens)
    engine = make_engine(bench.runner, bench.tokenizer, NoDrafts())
    return Sample(sampling.name, jobs, decode(engine, jobs, batch_size=bench.runner.cache.num_rows))


def load_draft(bench: Workbench, draft: DraftSpec, sample: Sample, max_draft_tokens: int) -> ExaminedDraft:
    """Load a draft. Args: sample: the target's answers, by which the layers of a head are chosen."""
    if draft.head is not None:
        return HeadDraft(bench, draft.config, sample, max_draft_tokens)
    return CausalDraft(bench, draft.config)


def _told_layers(examined: ExaminedDraft, draft: SpeculativeConfig, report: TreeReport) -> tuple[int, ...] | None:
    """The feature layers that a head needs as a setting, or that the report used if they are the same. None = no
    setting.
    """
    choice = examined.layer_choice
    if choice is None:
        return draft.feature_layers
    used = choice.used.feature_layers
    return None if choice.used.is_default and report.feature_layers != used else used


def _prospect(draft: ExaminedDraft, sample: Sample, times: StepTimes) -> Prospect:
    agreement = draft.agreement(sample)
    return forecast_all(sample.sampling, agreement, draft.rounds(sample, agreement), times)


def forecast_all(sampling: str, agreement: Agreement, seen: Seen, times: StepTimes) -> Prospect:
    """A forecast for every K, and the best of them.

    Args:
        sampling: its name.
    """
    forecasts = [forecast(seen, times, length) for length in range(times.max_draft_tokens + 1)]
    return Prospect(
        sampling=sampling,
        num_positions=agreement.num_positions,
        first_choice_rate=agreement.first_rate,
        beta=agreement.beta,
        first_four_rate=agreement.branches_rate,
        sayable_rate=agreement.sayable_rate,
        forecasts=forecasts,
        best=best_forecast(forecasts),
    )
