"""`starspec bench star`: one hub with more and more targets, as published in StarSD and with our batches and
run-ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low

from starspec.bench.star import operating_point as point
from starspec.bench.star.processes import NUM_TAGS, Turn, run_greedy
from starspec.bench.star.serving import ServedTurn, SpareTurns, StarTargets
from starspec.bench.star.traces import draw_traces, trace_turn
from starspec.config import HubConfig, ModelConfig
from starspec.harness.figures import require_matplotlib
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report

MAX_MODEL_LEN = 4096
PLAIN, SINGLE, ADMITTED, FULL = "plain", "one at a time", "one at a time, n_max", "full"
ALONE = "one target, one at a time"  # not a row of its own: it gives S and Z of this machine at that moment
SERVICES = {
    PLAIN: HubConfig(port=0),
    ALONE: HubConfig(port=0, max_batch=1, scheduling="fifo"),
    SINGLE: HubConfig(port=0, max_batch=1, scheduling="fifo"),
    FULL: HubConfig(port=0, run_ahead="outcomes", admission="n_max"),
    ADMITTED: HubConfig(
        port=0, max_batch=1, scheduling="fifo", admission="n_max"
    ),  # only with the largest number of targets
}

SATURATED = 0.97  # load from which on a hub counts as never idle
WEIGHTED = "weights 1 and 3"
WEIGHTS = {"target-0": 1.0, "target-1": 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class StarPlan:
    """How much to measure. The numbers of targets ascend from 1.

    For each number of targets the services take turns and are compared turn by turn, because a shared machine is faster
    at some times than at others. Seconds are modelled ones; `serving` explains slow motion.
    """

    num_targets: tuple[int, ...] = tuple(range(1, 17))
    num_repeats: int = 3
    warm_up_s: float = 1.0
    admission_s: float = 4.0  # warm-up of hubs with admission, in which they admit their targets
    seconds: float = 4.0  # of a turn, at least ...
    target_seconds: float = 24.0  # ... and for all targets together, because one target alone has few rounds
    of_one_seconds: float = 4.0  # of the turn that gives S and Z: its rounds all take the same time
    num_spare_turns: int = 60  # turns that may be repeated because other guests of the machine disturbed them
    slow_motion: float = 1.0

    @property
    def num_turns(self) -> int:
        return self.num_repeats * (len(self.num_targets) * (len(SERVICES) - 1) + 1) + 1


QUICK = StarPlan(num_targets=(1, 2, 4, 6, 8, 16), num_repeats=1, target_seconds=8.0, num_spare_turns=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StarRow:
    """One service with one number of targets: the median turn. Ratios are medians over the turns.

    Rates are named as in StarSD's appendix C.
    """

    service: str
    num_targets: int
    tokens_per_s: float  # O: of all targets
    tokens_per_s_per_target: float  # O_i, mean
    tokens_per_s_lowest: float  # O_i of the slowest target
    vs_plain: float | None  # the slowest target over the slowest one without drafts
    vs_plain_turns: list[float]  # of each turn
    stolen_turns: list[float]  # of each turn: share of the machine's time that other guests took
    proposals_per_s: float  # R_q, of the hub
    # N / T (eqs. 8 to 10) with S and Z measured with one target; service one at a time
    proposals_per_s_closed_form: float | None
    vs_closed_form: float | None  # R_q over the closed form
    vs_closed_form_turns: list[float]  # of each turn
    # the closed form with the modelled S and Z, as if the machine had no overhead
    proposals_per_s_nominal: float | None
    num_full: int | None  # N_full (eq. 12), by the same S and Z as the closed form
    vs_one_at_a_time: float | None  # O over that of one at a time; full service only
    tokens_per_round: float
    load: float  # of the hub, run-ahead included
    hit_rate: float  # share of verdicts whose next proposal was ready
    ahead_nodes_per_round: float  # nodes that run-ahead forwarded for possible outcomes
    sessions_per_layer: float  # sequences in a draft step; the name is that of receipts
    layer_ms: float  # t_s, one draft step as measured, with the overhead of sleeping; the name is that of receipts
    service_ms: float  # S(d), as measured
    wait_ms: float  # the hub's response time, as a round waits for it; T_wait is `t_wait_ms`
    t_wait_ms: float  # T_wait: of a request in the hub's buffer
    t_idle_ms: float  # T_idle between two requests, as in Table 1
    t_idle_iteration_ms: float  # T_idle of equation 9
    t_idle_s: float  # in all, of the middle turn
    link_ms: float  # t_c, a round
    paper_rounds_per_s: float | None  # as StarSD measured, if it did
    paper_tokens_per_s: float | None
    paper_step_ms: float | None  # t_s
    paper_t_wait_ms: float | None
    paper_t_idle_ms: float | None
    paper_load: float | None


def measure_star(plan: StarPlan, advance: Callable[[str], None]) -> Report:
    """Serve more and more synthetic targets, with each service in turn.

    Args:
        advance: called with what is about to be measured.
    Raises: PeerLost if a process dies or hangs.
    """
    rows: list[StarRow] = []
    spare = SpareTurns(plan.num_spare_turns)
    with StarTargets(max(plan.num_targets), _model(point.target_model(plan.slow_motion))) as targets:
        for num_targets in plan.num_targets:
            repeats = [_serve_all(plan, targets, num_targets, seed, spare, advance) for seed in range(plan.num_repeats)]
            rows += [_row(service, num_targets, repeats) for service in repeats[0] if service != ALONE]
    advance(WEIGHTED)
    weighted = _serve_by_weight(plan, spare)
    rows.append(_row(WEIGHTED, len(WEIGHTS), [{WEIGHTED: weighted}]))
    return Report(collect_provenance(), rows, _ratios(rows, weighted), _notes(plan, spare))


def _serve_all(
    plan: StarPlan,
    targets: StarTargets,
    num_targets: int,
    seed: int,
    spare: SpareTurns,
    advance: Callable[[str], None],
) -> dict[str, ServedTurn]:
    """Run every service once with the same requests, one soon after the other."""
    served = {}
    there_and_back = list(SERVICES.items())[:: -1 if seed % 2 else 1]  # so that no service is always the last
    for service, config in there_and_back:
        if service == ADMITTED and num_targets < max(plan.num_targets):
            continue
        advance(f"{num_targets} targets, {service}")
        num_served = 1 if service == ALONE else num_targets
        seconds = max(plan.seconds, plan.target_seconds / num_targets)
        if service == ALONE:
            seconds = plan.of_one_seconds
        elif service == ADMITTED:  # the gains are small, so few rounds would leave the smallest one to chance
            seconds = max(plan.seconds, plan.target_seconds)
        turn = Turn(
            num_draft_tokens=0 if service == PLAIN else point.DEPTH,
            warm_up_s=(plan.warm_up_s if config.admission == "off" else plan.admission_s) * plan.slow_motion,
            seconds=seconds * plan.slow_motion,
            seed=seed,
            slow_motion=plan.slow_motion,
        )
        draft = _model(point.draft_model(plan.slow_motion), num_served)
        served[service] = spare.serve(draft, config, targets, num_served, turn)
    return served


TRACED = {
    "n1-off": ("one target, run-ahead off", 1, SERVICES[SINGLE]),
    "n1-chain": ("one target, run-ahead chain", 1, HubConfig(port=0, run_ahead="chain")),
    "n1-outcomes": ("one target, run-ahead outcomes", 1, HubConfig(port=0, run_ahead="outcomes")),
    "n4-off": ("four targets, one at a time, run-ahead off", 4, SERVICES[SINGLE]),
}
SHOWN_S = 0.2  # of each trace in the picture
TRACED_TURN = Turn(num_draft_tokens=point.DEPTH, warm_up_s=0.5, seconds=2.0)


def trace_star(folder: Path, advance: Callable[[str], None]) -> None:
    """Write traces of TRACED, as NAME.json, and a picture of them, traces.png.

    Raises: PeerLost if a process dies or hangs; ConfigError if matplotlib is not installed or nothing can be written.
    """
    require_matplotlib()
    with StarTargets(
        max(num_targets for _, num_targets, _ in TRACED.values()), _model(point.target_model())
    ) as targets:
        for name, (title, num_targets, config) in TRACED.items():
            advance(f"a trace: {title}")
            draft = _model(point.draft_model(), num_targets)
            trace_turn(folder / f"{name}.json", draft, config, targets, num_targets, TRACED_TURN)
    draw_traces(
        [(title, folder / f"{name}.json") for name, (title, _, _) in TRACED.items()], folder / "traces.png", SHOWN_S
    )


def _model(name: str, num_rows: int = 1) -> ModelConfig:
    return ModelConfig(model=name, num_rows=num_rows, max_model_len=MAX_MODEL_LEN, num_threads=1)


def _serve_by_weight(plan: StarPlan, spare: SpareTurns) -> ServedTurn:
    """Two targets that always wait, at a hub that serves one sequence at a time."""
    with StarTargets(len(WEIGHTS), _model(point.target_model(plan.slow_motion)), run_greedy) as targets:
        draft = _model(point.draft_model(plan.slow_motion), len(WEIGHTS) * NUM_TAGS)
        turn = Turn(
            num_draft_tokens=point.DEPTH,
            warm_up_s=plan.warm_up_s * plan.slow_motion,
            seconds=2 * plan.seconds * plan.slow_motion,
            slow_motion=plan.slow_motion,
        )
        return spare.serve(draft, HubConfig(port=0, max_batch=1, weights=WEIGHTS), targets, len(WEIGHTS), turn)


def _notes(plan: StarPlan, spare: SpareTurns) -> dict[str, object]:
    return {
        "synthetic": True,
        "slow_motion": plan.slow_motion,
        "served_again": plan.num_spare_turns - spare.num_left,
        "draft": point.draft_model(plan.slow_motion),
        "target": point.target_model(plan.slow_motion),
        "depth": point.DEPTH,
        "nominal": point.NOMINAL,
        "n_full": point.NOMINAL.num_full,
    }


def _closed_form(served: ServedTurn) -> point.ClosedForm:
    """From one target that is served alone: a round is S + Z, and its queueing counts as service."""
    service_ms = served.queue_ms + served.service_ms
    return point.ClosedForm(service_ms, 1e3 / served.proposals_per_s - service_ms)


def _row(service: str, num_targets: int, repeats: Sequence[Mapping[str, ServedTurn]]) -> StarRow:
    """Args:
    repeats: for each repeat, the result of each service."""
    served = sorted((each[service] for each in repeats), key=lambda each: each.tokens_per_s)[len(repeats) // 2]
    is_single, has_plain = service == SINGLE, PLAIN in repeats[0]
    compared = (service, ALONE) if is_single else (service,)
    forms = [_closed_form(each[ALONE]) for each in repeats] if is_single else []
    said = [each.rounds_per_s(num_targets) for each in forms]
    followed = [each[service].proposals_per_s / rate for each, rate in zip(repeats, said, strict=False)]
    gained = [each[service].lowest / each[PLAIN].lowest for each in repeats] if has_plain else []
    paper = point.PAPER.get(num_targets) if service in (SINGLE, FULL) else None
    return StarRow(
        service=service,
        num_targets=num_targets,
        tokens_per_s=served.tokens_per_s,
        tokens_per_s_per_target=served.mean,
        tokens_per_s_lowest=served.lowest,
        vs_plain=median(gained) if gained else None,
        vs_plain_turns=gained,
        stolen_turns=[max(each[name].stolen for name in compared) for each in repeats],
        proposals_per_s=served.proposals_per_s,
        proposals_per_s_closed_form=median(said) if said else None,
        vs_closed_form=median(followed) if followed else None,
        vs_closed_form_turns=followed,
        proposals_per_s_nominal=point.nominal(served.slow_motion).rounds_per_s(num_targets) if is_single else None,
        num_full=median_low(each.num_full for each in forms) if forms else None,
        vs_one_at_a_time=_gain(repeats) if service == FULL else None,
        tokens_per_round=served.tokens_per_round,
        load=served.hub.load,
        hit_rate=served.hub.hit_rate,
        ahead_nodes_per_round=served.hub.num_ahead_nodes / max(1, served.hub.num_proposals),
        sessions_per_layer=served.hub.sequences_per_step.value,
        layer_ms=served.step_ms,
        service_ms=served.service_ms,
        wait_ms=served.wait_ms,
        t_wait_ms=served.queue_ms,
        t_idle_ms=served.idle_ms,
        t_idle_iteration_ms=served.idle_ms * num_targets,
        t_idle_s=served.whole_idle_s,
        link_ms=served.link_ms,
        paper_rounds_per_s=paper.rounds_per_s if paper else None,
        paper_tokens_per_s=paper.tokens_per_s if paper else None,
        paper_step_ms=paper.step_ms if paper else None,
        paper_t_wait_ms=paper.wait_ms if paper else None,
        paper_t_idle_ms=paper.idle_ms if paper else None,
        paper_load=paper.load if paper else None,
    )


def _gain(repeats: Sequence[Mapping[str, ServedTurn]]) -> float:
    return median(each[FULL].tokens_per_s / each[SINGLE].tokens_per_s for each in repeats)


def _ratios(rows: Sequence[StarRow], weighted: ServedTurn) -> dict[str, float]:
    turns = [each for row in rows for each in row.vs_closed_form_turns]
    ratios = {
        "closed_form_error_max": max(abs(row.vs_closed_form - 1) for row in rows if row.vs_closed_form),
        "closed_form_error_worst_turn": max(abs(each - 1) for each in turns),
        "nominal_error_max": max(  # includes the overhead that this machine adds to S and Z
            abs(row.proposals_per_s / row.proposals_per_s_nominal - 1) for row in rows if row.proposals_per_s_nominal
        ),
    }
    saturated = next((row for row in rows if row.service == SINGLE and row.load >= SATURATED), None)
    if saturated is not None and saturated.num_full is not None:
        ratios["n_full_measured_vs_equation_12"] = saturated.num_targets / saturated.num_full
    for row in rows:
        if row.vs_one_at_a_time is not None:
            ratios[f"system_n{row.num_targets}_vs_one_at_a_time"] = row.vs_one_at_a_time
            if row.num_targets == 1:
                ratios |= {"per_target_n1_vs_off": row.vs_one_at_a_time, "load_n1": row.load}
    ratios["stolen_worst_turn"] = max(each for row in rows for each in row.stolen_turns)
    full = [row for row in rows if row.service == FULL]
    ratios["min_per_target_vs_plain"] = _lowest(full)
    ratios["min_per_target_vs_plain_worst_turn"] = min(each for row in full for each in row.vs_plain_turns)
    ratios["one_at_a_time_n_max_min_per_target_vs_plain"] = _lowest(row for row in rows if row.service == ADMITTED)
    ratios["without_admission_min_per_target_vs_plain"] = _lowest(row for row in rows if row.service == SINGLE)
    light, heavy = (each.num_rounds for each in weighted.targets)
    ratios["served_weight_3_vs_weight_1"] = heavy / light
    return ratios


def _lowest(rows: Iterable[StarRow]) -> float:
    return min(row.vs_plain for row in rows if row.vs_plain is not None)
