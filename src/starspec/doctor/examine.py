"""`starspec doctor`: look at a pair, run it a little, and say what to expect of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starspec.bench.datasets import Prompt
from starspec.bench.decode import decode, make_engine
from starspec.bench.provenance import Provenance, collect_provenance
from starspec.bench.workbench import GREEDY, Sampling, Workbench
from starspec.config import ModelConfig
from starspec.doctor.agreement import Agreement, measure_agreement
from starspec.doctor.checks import Check, check_lengths, check_sizes, check_tokenizers
from starspec.doctor.outlook import Forecast, StepTimes, best_forecast, forecast
from starspec.doctor.timing import step_times_s
from starspec.models.load import load_runner
from starspec.models.runner import ModelRunner
from starspec.models.vocabulary import load_tokenizer
from starspec.target.drafts import NoDrafts

SAMPLINGS = (GREEDY, Sampling(temperature=0.7))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What to expect under one way of sampling."""

    sampling: str
    num_positions: int
    first_choice_rate: float  # the target's token is the draft's first choice
    first_four_rate: float  # it is among the draft's first four
    forecasts: list[Forecast]  # one for each K, from 0
    best: Forecast | None  # None: do not speculate


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Everything that the doctor found."""

    provenance: Provenance
    checks: list[Check]
    times: StepTimes | None = None  # None, and no prospects: the pair cannot be used
    prospects: list[Prospect] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        return all(check.severity != "fatal" for check in self.checks)


def examine(
    target: ModelConfig,
    draft: ModelConfig,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    max_draft_tokens: int,
    link_s: float,
) -> Examination:
    """Check a pair, and if it can be used measure it.

    Args:
        prompts: answered by the target plainly, `max_tokens` each.
        max_draft_tokens: largest K to forecast.
        link_s: round trip between target and hub, to be counted with each round.
    Raises: ModelError if one of the models cannot be loaded.
    """
    provenance = collect_provenance({"target": target.model, "draft": draft.model})
    checks = check_tokenizers(load_tokenizer(target.model), load_tokenizer(draft.model))
    if any(check.severity == "fatal" for check in checks):
        return Examination(provenance=provenance, checks=checks)
    bench, draft_runner = Workbench(target), load_runner(draft)
    checks.append(check_lengths(bench.runner.info, draft_runner.info))
    checks.append(check_sizes(bench.runner.info, draft_runner.info))
    times = StepTimes(
        draft_s=step_times_s(draft_runner, 1)[0],
        verify_s=step_times_s(bench.runner, max_draft_tokens + 1),
        link_s=link_s,
    )
    prospects = [_prospect(bench, draft_runner, prompts, each, max_tokens, times) for each in SAMPLINGS]
    return Examination(provenance=provenance, checks=checks, times=times, prospects=prospects)


def _prospect(
    bench: Workbench,
    draft: ModelRunner,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    max_tokens: int,
    times: StepTimes,
) -> Prospect:
    jobs = bench.jobs(prompts, sampling, max_tokens)
    engine = make_engine(bench.runner, bench.tokenizer, NoDrafts())
    answers = decode(engine, jobs, batch_size=bench.runner.cache.num_rows)
    agreement: Agreement = measure_agreement(draft, jobs, answers)
    forecasts = [forecast(agreement.first, times, length) for length in range(times.max_draft_tokens + 1)]
    return Prospect(
        sampling=sampling.name,
        num_positions=agreement.num_positions,
        first_choice_rate=agreement.first_rate,
        first_four_rate=agreement.branches_rate,
        forecasts=forecasts,
        best=best_forecast(forecasts),
    )
