"""What one hub does for more and more targets: StarSD as published, and with all that it leaves open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import mean

from starspec.bench.provenance import collect_provenance
from starspec.bench.report import Report
from starspec.bench.star import operating_point as point
from starspec.bench.star.star_processes import TargetTimes, Turn, run_hub, run_target
from starspec.bench.wire.processes import BenchProcess, Place
from starspec.config import HubConfig, ModelConfig
from starspec.speculation.stats import HubStats

MAX_MODEL_LEN = 4096
SERVICES = {
    "one at a time": HubConfig(port=0, max_batch=1),
    "full": HubConfig(port=0, run_ahead="outcomes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StarPlan:
    """How much to measure."""

    num_targets: tuple[int, ...] = tuple(range(1, 17))
    warm_up_s: float = 2.0
    seconds: float = 10.0

    @property
    def num_turns(self) -> int:
        return len(self.num_targets) * len(SERVICES)


QUICK = StarPlan(num_targets=(1, 2, 4, 6, 8, 16), warm_up_s=1.0, seconds=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StarRow:
    """One service of one number of targets. Rates are those of StarSD's appendix C."""

    service: str
    num_targets: int
    tokens_per_s: float  # O: of all targets
    tokens_per_s_per_target: float  # O_i, mean
    tokens_per_s_lowest: float  # O_i of the target that got least
    vs_plain: float  # that, against the target alone without drafts
    rounds_per_s: float  # R_q: proposals of the hub
    rounds_per_s_closed_form: float | None  # N / T (eqs. 8 to 10); for one at a time
    closed_form_error: float | None  # |measured / said - 1|
    tokens_per_round: float
    load: float  # of the hub, with what it drafts ahead
    hit_rate: float  # verdicts that found their proposal ready
    ahead_nodes_per_round: float  # forwarded for outcomes, likely or not
    sessions_per_layer: float
    wait_ms: float  # T_wait, a round
    link_ms: float  # t_c, a round
    paper_rounds_per_s: float | None  # StarSD's own, where it has one
    paper_tokens_per_s: float | None


def measure_star(plan: StarPlan, advance: Callable[[str], None]) -> Report:
    """Serve synthetic targets, more and more of them, one service after the other.

    Args:
        advance: called with what is about to be measured.
    Raises: PeerLost if a process dies or hangs.
    """
    target = ModelConfig(model=point.target_model(), num_rows=1, max_model_len=MAX_MODEL_LEN, num_threads=1)
    rows: list[StarRow] = []
    with ExitStack() as stack:
        targets = [
            stack.enter_context(
                BenchProcess(run_target, f"target-{index}", target, point.DEPTH, place=Place.THE_OTHERS)
            )
            for index in range(max(plan.num_targets))
        ]
        for each in targets:
            each.hear()
        for num_targets in plan.num_targets:
            for service, config in SERVICES.items():
                advance(f"{num_targets} targets, {service}")
                rows.append(_row(service, num_targets, *_serve(config, targets[:num_targets], plan)))
        for each in targets:
            each.say(None)
    notes = {
        "synthetic": True,
        "draft": point.draft_model(),
        "target": point.target_model(),
        "depth": point.DEPTH,
        "n_full": point.num_full(),
        "plain_tokens_per_s": point.plain_tokens_per_s(),
    }
    return Report(collect_provenance(), rows, _ratios(rows), notes)


def _serve(config: HubConfig, targets: Sequence[BenchProcess], plan: StarPlan) -> tuple[HubStats, list[TargetTimes]]:
    draft = ModelConfig(model=point.draft_model(), num_rows=len(targets), max_model_len=MAX_MODEL_LEN, num_threads=1)
    with BenchProcess(run_hub, draft, config, place=Place.ONE_CORE) as hub:
        turn = Turn(endpoint=f"tcp://127.0.0.1:{hub.hear()}", warm_up_s=plan.warm_up_s, seconds=plan.seconds)
        for each in targets:
            each.say(turn)
        for each in targets:
            each.hear()
        for each in targets:
            each.say("go")
        times = [each.hear() for each in targets]
        hub.say("how was it?")
        stats = hub.hear()
        hub.say(None)
        return stats, times


def _row(service: str, num_targets: int, hub: HubStats, times: Sequence[TargetTimes]) -> StarRow:
    rates = [each.num_tokens / each.seconds for each in times]
    rounds_per_s = sum(each.num_rounds / each.seconds for each in times)
    said = num_targets / point.round_ms(num_targets) * 1e3 if service == "one at a time" else None
    paper = point.PAPER.get(num_targets)
    return StarRow(
        service=service,
        num_targets=num_targets,
        tokens_per_s=sum(rates),
        tokens_per_s_per_target=mean(rates),
        tokens_per_s_lowest=min(rates),
        vs_plain=min(rates) / point.plain_tokens_per_s(),
        rounds_per_s=rounds_per_s,
        rounds_per_s_closed_form=said,
        closed_form_error=abs(rounds_per_s / said - 1) if said else None,
        tokens_per_round=sum(each.num_tokens for each in times) / max(1, sum(each.num_rounds for each in times)),
        load=hub.load,
        hit_rate=hub.num_hits / max(1, hub.num_outcomes),
        ahead_nodes_per_round=hub.num_ahead_nodes / max(1, hub.num_proposals),
        sessions_per_layer=hub.sessions_per_layer.value,
        wait_ms=mean(each.wait_s for each in times) * 1e3,
        link_ms=mean(each.link_s for each in times) * 1e3,
        paper_rounds_per_s=paper.rounds_per_s if paper else None,
        paper_tokens_per_s=paper.tokens_per_s if paper else None,
    )


def _ratios(rows: Sequence[StarRow]) -> dict[str, float]:
    found = {(row.service, row.num_targets): row for row in rows}
    ratios = {"closed_form_error_max": max(row.closed_form_error or 0.0 for row in rows)}
    for num_targets in sorted({row.num_targets for row in rows}):
        full, single = found["full", num_targets], found["one at a time", num_targets]
        ratios[f"system_n{num_targets}_vs_one_at_a_time"] = full.tokens_per_s / single.tokens_per_s
        if num_targets == 1:
            ratios["per_target_n1_vs_off"] = full.tokens_per_s / single.tokens_per_s
    ratios["min_per_target_vs_plain"] = min(row.vs_plain for row in rows if row.service == "full")
    return ratios
