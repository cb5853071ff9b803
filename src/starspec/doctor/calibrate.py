"""`starspec calibrate`: which tokens relaxed verification should leave alone, for one target and its draft.

The target answers a few prompts plainly, at temperature 1. At each position of its answers, the draft's likeliest token
is compared with the target, by the three tests of DSD's equation 7. Each threshold is the quantile at which its test
alone would mark a third of `key_share` of these tokens. So all three together mark at most `key_share`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from starspec.config import ModelConfig, SpeculativeConfig
from starspec.doctor.agreement import AnswerScorer, CausalScorer, Sample
from starspec.doctor.examine import check_pair, load_draft, sample_answers
from starspec.errors import ConfigError
from starspec.harness.datasets import Prompt, check_fit, hash_prompts
from starspec.harness.provenance import Provenance, collect_provenance
from starspec.harness.table import Block
from starspec.harness.workbench import Sampling, Workbench
from starspec.models.loading.locate import announced_name
from starspec.models.resolve import draft_name, resolve_draft
from starspec.speculation.acceptance import NUM_STATED, KeyThresholds
from starspec.speculation.relaxed import Evidence, evidence
from starspec.speculation.signals import top_tokens

NUM_TESTS = 3
SAMPLING = Sampling(temperature=1.0)
METHOD = (
    "quantiles over the draft's likeliest token at each position of the target's own answers at temperature 1; each "
    "test marks a third of key_share"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What `--relaxed-thresholds` reads, and where it comes from."""

    provenance: Provenance
    target: str  # the name of its folder, as it and the hub call what they run
    draft: str
    method: str
    key_share: float  # of drafted tokens, at most, that are key ...
    measured_key_share: float  # ... and how many are, as tests overlap
    num_positions: int
    num_prompts: int
    prompts_sha256: str
    thresholds: KeyThresholds


def calibrate(
    target: ModelConfig,
    draft: SpeculativeConfig,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    key_share: float,
) -> Calibration:
    """Answer the prompts, compare both models, and choose the thresholds.

    Args:
        draft: a causal LM or an EAGLE head.
        key_share: share of drafted tokens that may be key, above 0 and below 1.
    Raises: ModelError if one of the models cannot be loaded; ConfigError if there is no draft, if it does not fit the
        target, or if no position can be compared; as check_fit.
    """
    if draft.model is None:
        raise ConfigError("there is nothing to compare the target with: give --draft")
    provenance = collect_provenance({"target": target.model, "draft": draft.model})
    spec = resolve_draft(draft)
    for check in check_pair(target, spec):
        if check.severity == "fatal":
            raise ConfigError(f"this draft does not fit this target: {check.sentence}")
    check_fit(prompts, target)
    bench = Workbench(target)
    sample = sample_answers(bench, prompts, SAMPLING, max_tokens)
    examined = load_draft(bench, spec, sample, max_draft_tokens=1)
    found = list(_evidence(examined.scorer, CausalScorer(bench.runner), sample))
    if not found:
        raise ConfigError("the draft predicts no position of the target's answers: give other prompts")
    thresholds = choose_thresholds(found, key_share)
    return Calibration(
        provenance=provenance,
        target=announced_name(target.model),
        draft=draft_name(spec),
        method=METHOD,
        key_share=key_share,
        measured_key_share=sum(bool(each.is_key(thresholds)[0]) for each in found) / len(found),
        num_positions=len(found),
        num_prompts=len(prompts),
        prompts_sha256=hash_prompts(prompts),
        thresholds=thresholds,
    )


def choose_thresholds(found: Sequence[Evidence], key_share: float) -> KeyThresholds:
    """The thresholds at which each test marks a third of `key_share` of the positions' first tokens."""
    share = key_share / NUM_TESTS

    def quantile(values: Sequence[float], at: float) -> float:
        # of the values themselves: one between two of them would depend on how far the next one is
        return float(torch.tensor(values, dtype=torch.float64).quantile(at, interpolation="nearest"))

    return KeyThresholds(
        lambda_1=quantile([float(each.ratios[0]) for each in found], 1.0 - share),
        lambda_2=min(1.0, quantile([float(each.differences[0]) for each in found], 1.0 - share)),
        lambda_3=min(1.0, quantile([each.norm_match for each in found], share)),
    )


def _evidence(draft: AnswerScorer, target: AnswerScorer, sample: Sample) -> Iterator[Evidence]:
    """At each position for which the draft predicts something; of each, the draft's likeliest token comes first."""
    for job, answer in zip(sample.jobs, sample.answers, strict=True):
        pairs = (each.answer_logits(job.prompt_token_ids, answer.token_ids) for each in (target, draft))
        for own, drafted in zip(*pairs, strict=True):
            if bool(drafted.isfinite().any()):
                yield _at_position(own, drafted[: len(own)])


def _at_position(own: Tensor, drafted: Tensor) -> Evidence:
    (top,) = top_tokens(drafted[None], NUM_STATED)
    logprobs = own.to(torch.float64).log_softmax(0)[list(top.token_ids)].cpu()
    return evidence(logprobs, torch.tensor(top.logprobs, dtype=torch.float64))


def blocks(found: Calibration) -> list[Block]:
    """What people read."""
    return [
        f"lambda_1 {found.thresholds.lambda_1:.4g}   draft's surprisal / target's",
        f"lambda_2 {found.thresholds.lambda_2:.4g}   difference of probabilities",
        f"lambda_3 {found.thresholds.lambda_3:.4g}   overlap of the {NUM_STATED} likeliest tokens",
        f"{found.measured_key_share:.1%} of {found.num_positions} drafted tokens are key: they are verified strictly",
    ]
