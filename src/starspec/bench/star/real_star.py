"""`starspec bench star --target --draft`: real models, one hub and some targets, beside what their step times predict.

The hub has a core of its own. Targets share the others, so on a small machine they slow each other down; their plain
speed is measured under the same load. The prediction runs the same star with synthetic models that take the measured
times and no processor: it is what as many cores or accelerators as processes would give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Final

from starspec.bench.star.operating_point import ClosedForm
from starspec.bench.star.processes import Requests, Turn, attached
from starspec.bench.star.serving import ServedTurn, StarTargets, serve_turn
from starspec.config import HubConfig, ModelConfig, SpeculativeConfig
from starspec.harness.datasets import Prompt, check_fit, hash_prompts, prompt_token_ids, spread
from starspec.harness.decode import Job
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.table import Block, Column, Table, ratio_lines
from starspec.local_star import check_drafts
from starspec.models.loading.load import load_runner
from starspec.models.loading.tokenizer import load_tokenizer
from starspec.sampling.spec import SamplingSpec

PLAIN, SINGLE, BATCHED, AHEAD = "plain", "one at a time", "batched", "batched, run-ahead auto"
SERVICES: Final = {
    PLAIN: HubConfig(port=0),
    SINGLE: HubConfig(port=0, max_batch=1, scheduling="fifo"),
    BATCHED: HubConfig(port=0),
    AHEAD: HubConfig(port=0, run_ahead="auto"),
}
MAX_MODEL_LEN: Final = 1024
SYNTHETIC_VOCAB: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RealStarPlan:
    """How much to measure. Services take turns. Every target answers the prompts in a circle, one at a time."""

    num_targets: tuple[int, ...] = (1, 2, 3)
    num_draft_tokens: int = 3
    num_prompts: int = 8
    max_tokens: int = 96  # of an answer
    num_repeats: int = 3
    warm_up_s: float = 5.0
    seconds: float = 20.0  # of a turn
    predicted_seconds: float = 6.0  # of a turn of the prediction

    @property
    def num_turns(self) -> int:
        return len(self.num_targets) * (len(SERVICES) * self.num_repeats + len(SERVICES) - 1)


QUICK = RealStarPlan(num_targets=(1, 2), num_prompts=2, max_tokens=32, num_repeats=1, warm_up_s=2.0, seconds=6.0)


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """What the prediction takes from the turns with one target."""

    draft_ms: float  # t_s
    plain_ms: float  # t_v without a draft
    verify_ms: float  # t_v
    tokens_per_round: float
    num_draft_tokens: int

    @property
    def alpha(self) -> float:
        """The acceptance of independent tokens that gives so many tokens a round (StarSD, equation 3)."""
        low, high = 0.0, 1.0
        for _ in range(40):
            alpha = (low + high) / 2
            if sum(alpha**depth for depth in range(self.num_draft_tokens + 1)) < self.tokens_per_round:
                low = alpha
            else:
                high = alpha
        return low

    def model(self, role: str, num_rows: int = 1) -> ModelConfig:
        """A synthetic model that takes these times. A further sequence of a draft step is taken to cost nothing."""
        name = f"synthetic:role={role},vocab={SYNTHETIC_VOCAB},alpha={self.alpha:.4f}"
        if role == "draft":
            name += f",step_ms={self.draft_ms:.4f}"
        else:
            further = max(0.0, self.verify_ms / self.plain_ms - 1) / self.num_draft_tokens
            name += f",step_ms={self.plain_ms:.4f},per_token={further:.6f}"
        return ModelConfig(model=name, num_rows=num_rows, max_model_len=4 * MAX_MODEL_LEN, num_threads=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealStarRow:
    """One service with one number of targets: the median turn, and its prediction."""

    service: str
    num_targets: int
    tokens_per_s: float  # O: of all targets, prompts included
    tokens_per_s_lowest: float  # O_i of the slowest target
    vs_plain: float | None  # all tokens, over those of as many targets without drafts
    predicted_tokens_per_s: float | None
    vs_predicted: float | None
    proposals_per_s: float  # R_q
    proposals_per_s_closed_form: float | None  # N / T (eqs. 8 to 10) by the S and Z of one target
    tokens_per_round: float
    load: float  # of the hub
    step_ms: float  # t_s
    service_ms: float  # S
    verify_ms: float  # t_v
    link_ms: float  # t_c
    t_wait_ms: float  # T_wait
    t_idle_ms: float  # T_idle between two requests
    t_idle_s: float  # in all, of the middle turn


Repeats = dict[tuple[str, int], list[ServedTurn]]
"""The repeats of each service with each number of targets."""


def measure_real_star(
    target: ModelConfig,
    draft: ModelConfig,
    prompts: Sequence[Prompt],
    plan: RealStarPlan,
    advance: Callable[[str], None],
) -> Report:
    """Serve more and more targets with each service, and then the synthetic star that takes the same times.

    Args:
        draft: a draft model, or an EAGLE head of the target.
        advance: called with what is about to be measured.
    Raises: as check_drafts and check_fit; PeerLost if a process dies or hangs.
    """
    check_drafts(target, SpeculativeConfig(model=draft.model, quantization=draft.quantization))
    chosen = spread(prompts, plan.num_prompts)
    check_fit(chosen, target)
    run = partial(run_prompts_target, prompts=chosen, max_tokens=plan.max_tokens)
    with StarTargets(max(plan.num_targets), target, run) as targets:
        served = _serve_all(plan, targets, lambda num_rows: replace(draft, num_rows=num_rows), advance)
    times = _times(plan, served)
    synthetic = replace(plan, num_repeats=1, warm_up_s=1.0, seconds=plan.predicted_seconds)
    with StarTargets(max(plan.num_targets), times.model("target")) as targets:
        predicted = _serve_all(
            synthetic,
            targets,
            partial(times.model, "draft"),
            lambda what: advance(f"predicted: {what}"),
            [service for service in SERVICES if service != PLAIN],
        )
    rows = [_row(service, num, served, predicted) for service, num in served]
    notes: dict[str, object] = {
        "draft_quantization": draft.quantization,
        "prompts": hash_prompts(chosen),
        "max_tokens": plan.max_tokens,
        "num_draft_tokens": plan.num_draft_tokens,
        "step_times": times,
        "alpha": times.alpha,
    }
    ratios = {f"auto_vs_off_{num}": _ratio(served, num) for num in plan.num_targets}
    return Report(collect_provenance({"target": target.model, "draft": draft.model}), rows, ratios, notes)


def run_prompts_target(
    parent: Connection, name: str, model: ModelConfig, *, prompts: Sequence[Prompt], max_tokens: int
) -> None:
    """Answer the prompts in a circle, as long as a turn lasts. Messages are those of `run_target`. Raises: PeerLost."""
    runner, tokenizer = load_runner(model), load_tokenizer(model.model)
    sampling = SamplingSpec(temperature=0.0, end_token_ids=tuple(runner.info.eos_token_ids))
    asked = [tuple(prompt_token_ids(tokenizer, prompt)) for prompt in prompts]
    parent.send(True)
    while (word := parent.recv()) is not None:
        endpoint, turn = word
        with attached(name, runner, tokenizer, endpoint, turn) as target:
            parent.send(True)
            parent.recv()
            requests = Requests(target.engine, _in_a_circle(asked, sampling, max_tokens))
            requests.serve_for(turn.warm_up_s)
            parent.send(target.measure(partial(requests.serve_for, turn.seconds)))
            requests.end()


def _in_a_circle(asked: Sequence[tuple[int, ...]], sampling: SamplingSpec, max_tokens: int) -> Iterator[Job]:
    for number, token_ids in enumerate(itertools.cycle(asked)):
        yield Job(f"request-{number}", token_ids, sampling, max_tokens)


def _serve_all(
    plan: RealStarPlan,
    targets: StarTargets,
    draft: Callable[[int], ModelConfig],
    advance: Callable[[str], None],
    services: Sequence[str] = tuple(SERVICES),
) -> Repeats:
    """Args: draft: the hub's model with so many rows."""
    served: Repeats = {(service, num): [] for num in plan.num_targets for service in services}
    for seed in range(plan.num_repeats):
        for (service, num), turns in served.items():
            advance(f"{num} targets, {service}")
            turn = Turn(
                num_draft_tokens=0 if service == PLAIN else plan.num_draft_tokens,
                warm_up_s=plan.warm_up_s,
                seconds=plan.seconds,
                seed=seed,
            )
            turns.append(serve_turn(draft(num), SERVICES[service], targets, num, turn))
    return served


def _median(turns: Sequence[ServedTurn]) -> ServedTurn:
    return sorted(turns, key=lambda each: each.tokens_per_s)[len(turns) // 2]


def _ratio(served: Repeats, num_targets: int) -> float:
    """Running ahead by trial over never running ahead, turn by turn; the median of the repeats."""
    pairs = zip(served[AHEAD, num_targets], served[BATCHED, num_targets], strict=True)
    return median(one.tokens_per_s / other.tokens_per_s for one, other in pairs)


def _times(plan: RealStarPlan, served: Mapping[tuple[str, int], Sequence[ServedTurn]]) -> MeasuredTimes:
    least = min(plan.num_targets)
    plain, single = (_median(served[service, least]) for service in (PLAIN, SINGLE))
    return MeasuredTimes(
        draft_ms=single.step_ms,
        plain_ms=plain.verify_ms,
        verify_ms=single.verify_ms,
        tokens_per_round=single.tokens_per_round,
        num_draft_tokens=plan.num_draft_tokens,
    )


def _row(service: str, num: int, served: Repeats, predicted: Repeats) -> RealStarRow:
    found, plain = _median(served[service, num]), _median(served[PLAIN, num])
    said = _median(predicted[service, num]).tokens_per_s if service != PLAIN else None
    return RealStarRow(
        service=service,
        num_targets=num,
        tokens_per_s=found.tokens_per_s,
        tokens_per_s_lowest=found.lowest,
        vs_plain=None if service == PLAIN else found.tokens_per_s / plain.tokens_per_s,
        predicted_tokens_per_s=said,
        vs_predicted=None if said is None else found.tokens_per_s / said,
        proposals_per_s=found.proposals_per_s,
        proposals_per_s_closed_form=_said(served, num) if service == SINGLE else None,
        tokens_per_round=found.tokens_per_round,
        load=found.hub.load,
        step_ms=found.step_ms,
        service_ms=found.service_ms,
        verify_ms=found.verify_ms,
        link_ms=found.link_ms,
        t_wait_ms=found.queue_ms,
        t_idle_ms=found.idle_ms,
        t_idle_s=found.whole_idle_s,
    )


def _said(served: Repeats, num_targets: int) -> float | None:
    """R_q by the S and Z of the smallest star; None if it got no proposal."""
    least = min(num for _, num in served)
    alone = _median(served[SINGLE, least])
    if not alone.proposals_per_s:
        return None
    form = ClosedForm(alone.service_ms, least * 1e3 / alone.proposals_per_s - alone.service_ms)
    return form.rounds_per_s(num_targets)


COLUMNS = (
    Column("targets", "num_targets"),
    Column("service", "service"),
    Column("tokens/s", "tokens_per_s", ".1f"),
    Column("x plain", "vs_plain", ".2f"),
    Column("predicted", "predicted_tokens_per_s", ".1f"),
    Column("lowest", "tokens_per_s_lowest", ".1f"),
    Column("tokens a round", "tokens_per_round", ".2f"),
    Column("R_q", "proposals_per_s", ".1f"),
    Column("said", "proposals_per_s_closed_form", ".1f"),
    Column("load", "load", ".0%"),
    Column("t_s", "step_ms", ".1f"),
    Column("t_v", "verify_ms", ".1f"),
    Column("t_c", "link_ms", ".1f"),
    Column("T_wait", "t_wait_ms", ".1f"),
    Column("T_idle", "t_idle_ms", ".1f"),
    Column("in all, s", "t_idle_s", ".1f"),
)
TITLE = (
    "the hub has a core of its own, targets share the others; predicted = a synthetic star with the step times of one "
    "target, a core for each; said = R_q by StarSD's equations 8 to 10; times in milliseconds"
)


def blocks(report: Report) -> list[Block]:
    """What people read: one row for each service of each number of targets."""
    return [Table(TITLE, COLUMNS, report.rows), *ratio_lines(report.ratios)]
