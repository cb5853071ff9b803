"""Stars of synthetic accelerators: the equations, and real processes in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from starspec.bench.star import async_pair, measure, real_star, serving, tables
from starspec.bench.star import operating_point as point
from starspec.bench.star import serving as stolen_time
from starspec.bench.star.async_pair import (
    CASES,
    DRAFT_MS,
    PLAIN_MS,
    VERIFY_MS,
    AsyncPlan,
    PaperCase,
    measure_async,
)
from starspec.bench.star.measure import StarPlan, measure_star, trace_star
from starspec.bench.star.processes import TargetTimes, Turn
from starspec.bench.star.real_pair import RealPairPlan, measure_real_pair
from starspec.bench.star.real_star import MeasuredTimes, RealStarPlan, measure_real_star
from starspec.bench.star.serving import ServedTurn, StolenTime
from starspec.bench.star.traces import GIVEN_UP, HUB, STEP, VERIFY, read_trace
from starspec.config import HubConfig, ModelConfig
from starspec.harness.datasets import own_prompts
from starspec.harness.provenance import collect_provenance
from starspec.harness.report import Report
from starspec.harness.table import Table
from starspec.models.synthetic.spec import parse_synthetic
from starspec.stats import HubStats


def test_the_operating_point_is_that_of_the_papers_table() -> None:
    assert point.NOMINAL.num_full == 4
    for num_targets, row in point.PAPER.items():
        assert point.NOMINAL.rounds_per_s(num_targets) == pytest.approx(row.rounds_per_s, rel=0.15)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_synchronous_speculation_at_its_best_length_is_as_fast_as_in_the_paper(case: PaperCase) -> None:
    def speed(length: int) -> float:
        emitted = sum(case.alpha**depth for depth in range(length + 1))
        return emitted * PLAIN_MS / (length * DRAFT_MS + VERIFY_MS)

    best = max(range(1, 12), key=speed)
    assert best == case.length
    assert speed(best) == pytest.approx(case.synchronous, abs=0.005)


@pytest.mark.system
def test_a_small_star_is_served_and_counted() -> None:
    plan = StarPlan(num_targets=(1, 2), num_repeats=1, warm_up_s=0.3, admission_s=0.3, seconds=1.5, target_seconds=0.0)
    report = measure_star(plan, lambda _: None)
    assert [(row.num_targets, row.service) for row in report.rows] == [
        *((1, service) for service in ("plain", "one at a time", "full")),
        *((2, service) for service in ("plain", "one at a time", "full", "one at a time, n_max")),
        (2, "weights 1 and 3"),
    ]
    for row in report.rows:
        assert row.tokens_per_s > 0
        if row.service in ("one at a time", "full"):
            assert 1 <= row.tokens_per_round < 1 + point.DEPTH
        assert (row.hit_rate > 0) == (row.service == "full")
    assert report.rows[0].tokens_per_round == 1
    assert {
        "closed_form_error_max",
        "closed_form_error_worst_turn",
        "nominal_error_max",
        "per_target_n1_vs_off",
        "min_per_target_vs_plain",
        "min_per_target_vs_plain_worst_turn",
        "one_at_a_time_n_max_min_per_target_vs_plain",
    } <= report.ratios.keys()
    assert report.ratios["served_weight_3_vs_weight_1"] > 2


def test_slow_motion_is_told_in_modelled_time() -> None:
    for name in (point.draft_model, point.target_model):
        once, four_times = parse_synthetic(name()), parse_synthetic(name(4.0))
        assert four_times.forward_s(3, 9) == pytest.approx(4 * once.forward_s(3, 9))
    hub = HubStats()
    hub.t_s.add(0.0056)
    hub.service.add(0.0448)
    hub.queue.add(0.0012)
    hub.idle_per_request_s, hub.idle_s = 0.0392, 4.0
    one, other = (
        TargetTimes(num_tokens, num_rounds=25, num_proposals=20, seconds=4.0, wait_s=0.05, link_s=0.004)
        for num_tokens in (80, 120)
    )
    served = ServedTurn(hub, [one, other], slow_motion=4.0)
    assert (served.tokens_per_s, served.mean, served.lowest) == (200, 100, 80)
    assert (served.rounds_per_s, served.proposals_per_s, served.tokens_per_round) == (50, 40, 4)
    told_ms = (served.step_ms, served.service_ms, served.queue_ms, served.idle_ms, served.wait_ms, served.link_ms)
    assert told_ms == pytest.approx((1.4, 11.2, 0.3, 9.8, 12.5, 1.0))
    assert served.whole_idle_s == 1.0


@pytest.mark.system
def test_a_small_pair_is_served_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_pair, "CASES", CASES[1:2])
    plan, turns = AsyncPlan(warm_up_s=0.2, seconds=0.6, num_repeats=2, outcome_lengths=(2,)), list[str]()
    report = measure_async(plan, turns.append)
    assert [(row.case, row.run_ahead, row.num_draft_tokens) for row in report.rows] == [
        *(("HumanEval", "off", length) for length in (2, 3, 4)),
        ("HumanEval", "chain", 8),
        ("HumanEval", "outcomes", 2),
        ("HumanEval", "auto", 3),
    ]
    assert len(turns) == plan.num_turns
    assert [row.hit_rate > 0 for row in report.rows if row.run_ahead != "auto"] == [False] * 3 + [True] * 2
    assert report.ratios.keys() == {
        f"{mode}_vs_sync_{name}" for mode in ("chain", "outcomes", "auto") for name in ("HumanEval", "mean")
    }


def test_a_traced_star_shows_what_hub_and_targets_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # outcomes never end, so some draft steps are in vain; a chain ends before its verdict comes
    outcomes = {"outcomes": ("outcomes", 1, HubConfig(port=0, run_ahead="outcomes"))}
    monkeypatch.setattr(measure, "TRACED", outcomes)
    monkeypatch.setattr(measure, "TRACED_TURN", Turn(num_draft_tokens=point.DEPTH, warm_up_s=0.1, seconds=1.0))
    trace_star(tmp_path / "traces", lambda _: None)
    done = {(each.process, each.name) for each in read_trace(tmp_path / "traces" / "outcomes.json")}
    assert {(HUB, STEP), (HUB, GIVEN_UP), ("target-0", VERIFY)} <= done
    assert (tmp_path / "traces" / "traces.png").stat().st_size > 1000


def test_a_pair_of_any_models_decodes_the_same_requests_with_each_setting(tmp_path: Path) -> None:
    """Real models are loaded the same way; these take no time to load."""
    target, draft = (
        ModelConfig(model=f"synthetic:role={role},alpha=0.9,step_ms={step_ms}", num_rows=1, num_threads=1)
        for role, step_ms in (("target", 10), ("draft", 2))
    )
    plan = RealPairPlan(num_prompts=2, max_tokens=24, num_repeats=1, lengths=(2,))
    report = measure_real_pair(target, draft, own_prompts(), plan, lambda _: None, tmp_path)
    assert [(row.run_ahead, row.num_draft_tokens) for row in report.rows] == plan.settings
    for row in report.rows:
        assert row.tokens_per_s > 0
        if row.run_ahead != "auto":  # it begins with "off", and tries others later
            assert (row.hit_rate > 0) == (row.run_ahead != "off")
    assert report.ratios.keys() == {"chain_vs_off", "outcomes_vs_off", "auto_vs_off"}
    assert {each.name for each in tmp_path.iterdir()} == {"off.json", "chain.json", "outcomes.json", "traces.png"}


def test_a_star_of_any_models_is_served_beside_what_its_step_times_predict() -> None:
    """Real models are loaded the same way; these take no time to load."""
    target, draft = (
        ModelConfig(model=f"synthetic:role={role},alpha=0.9,step_ms={step_ms}", num_rows=1, num_threads=1)
        for role, step_ms in (("target", 10), ("draft", 2))
    )
    plan = RealStarPlan(
        num_targets=(2,),
        num_prompts=2,
        max_tokens=24,
        num_repeats=1,
        warm_up_s=0.2,
        seconds=0.5,
        predicted_seconds=0.5,
    )
    turns: list[str] = []
    report = measure_real_star(target, draft, own_prompts(), plan, turns.append)
    assert len(turns) == plan.num_turns
    assert [(row.num_targets, row.service) for row in report.rows] == [
        (2, service) for service in ("plain", "one at a time", "batched", "batched, run-ahead auto")
    ]
    assert report.ratios.keys() == {"auto_vs_off_2"}
    for row in report.rows:
        assert row.tokens_per_s > 0
        assert (row.predicted_tokens_per_s is None) == (row.vs_plain is None) == (row.service == "plain")


def test_a_head_drafts_for_a_star_too(headed: tuple[str, str]) -> None:
    target, head = (ModelConfig(model=model, dtype="float32", num_rows=1, num_threads=1) for model in headed)
    plan = RealStarPlan(
        num_targets=(1,),
        num_draft_tokens=2,
        num_prompts=2,
        max_tokens=24,
        num_repeats=1,
        warm_up_s=0.3,
        seconds=1.0,
        predicted_seconds=0.5,
    )
    _, single, batched, _ = measure_real_star(target, head, own_prompts(), plan, lambda _: None).rows
    assert single.proposals_per_s > 0
    assert batched.tokens_per_round > 1


def test_a_star_is_predicted_from_the_times_and_the_acceptance_of_one_target() -> None:
    times = MeasuredTimes(draft_ms=2.0, plain_ms=10.0, verify_ms=13.0, tokens_per_round=2.533, num_draft_tokens=3)
    assert times.alpha == pytest.approx(0.7, abs=1e-3), "1 + 0.7 + 0.49 + 0.343 = 2.533"
    target, draft = (parse_synthetic(times.model(role).model) for role in ("target", "draft"))
    assert target.forward_s(1, 4) == pytest.approx(0.013)
    assert target.forward_s(1, 1) == pytest.approx(0.010)
    assert draft.forward_s(1, 1) == pytest.approx(0.002)
    assert target.alpha == draft.alpha


def test_a_disturbed_turn_is_served_again_and_the_quietest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    stolen = iter([0.01, 0.3, 0.2, 0.01, 0.3, 0.1, 0.2, 0.4, 0.5])
    monkeypatch.setattr(serving, "serve_turn", lambda *_: serving.ServedTurn(HubStats(), [], stolen=next(stolen)))
    spare = serving.SpareTurns(5)

    def serve() -> float:
        return spare.serve(None, None, None, 1, None).stolen  # type: ignore[arg-type]

    assert (serve(), spare.num_left) == (0.01, 5)
    assert (serve(), spare.num_left) == (0.01, 3)
    assert (serve(), spare.num_left) == (0.1, 0), "three more, at most"
    assert (serve(), spare.num_left) == (0.5, 0), "none left to spare"


def test_stolen_time_is_the_share_of_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(stolen_time, "_STAT", stat)
    assert StolenTime().share == 0, "where the system does not say"
    stat.write_text("cpu  100 10 20 400 5 1 2 30 7 3\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    stolen = StolenTime()
    stat.write_text("cpu  130 10 20 420 5 1 2 80 9 3\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert stolen.share == pytest.approx(0.5)


def test_the_equations_are_told_by_the_target_that_was_alone() -> None:
    def served(queue_s: float, service_s: float, num_proposals: int, num_targets: int) -> ServedTurn:
        hub = HubStats()
        hub.queue.add(queue_s)
        hub.service.add(service_s)
        times = TargetTimes(3 * num_proposals, num_proposals, num_proposals, seconds=1.0, wait_s=0.0, link_s=0.0)
        return ServedTurn(hub, [times] * num_targets)

    turns = {measure.ALONE: served(0.001, 0.009, 25, 1), measure.SINGLE: served(0.02, 0.01, 22, 4)}  # S 10 ms, Z 30 ms
    row = measure._row(measure.SINGLE, 4, [turns])
    assert row.proposals_per_s_closed_form == pytest.approx(100.0)
    assert row.vs_closed_form == pytest.approx(0.88)
    assert row.num_full == 4


def test_the_papers_words_mean_what_they_mean_in_its_table() -> None:
    hub = HubStats(idle_per_request_s=0.004, idle_s=0.16, load=0.9)
    hub.queue.add(0.0005)
    times = TargetTimes(60, num_rounds=20, num_proposals=20, seconds=1.0, wait_s=0.0131, link_s=0.001)
    row = measure._row(
        measure.FULL, 2, [{measure.FULL: ServedTurn(hub, [times] * 2), measure.SINGLE: ServedTurn(hub, [times])}]
    )
    assert (row.t_wait_ms, row.wait_ms) == pytest.approx((0.5, 13.1)), "queueing in the buffer; the response time"
    assert (row.t_idle_ms, row.t_idle_iteration_ms, row.t_idle_s) == pytest.approx((4.0, 8.0, 0.16))
    assert (row.paper_t_wait_ms, row.paper_t_idle_ms) == (0.5, 9.8)
    _, beside, *_ = tables.blocks(Report(collect_provenance({}), [row], {}, {"slow_motion": 1.0}))
    assert isinstance(beside, Table)
    printed = [(column.title, column.cell(beside.rows[0])) for column in beside.columns]
    first = printed.index(("T_wait", "0.50"))
    assert printed[first : first + 6] == [
        ("T_wait", "0.50"),
        ("in paper", "0.50"),
        ("T_idle", "4.0"),
        ("in paper", "9.8"),
        ("T_idle of eq. 9", "8.0"),
        ("in all, s", "0.2"),
    ]


def test_a_star_of_real_models_has_the_papers_words_too() -> None:
    hub = HubStats(idle_per_request_s=0.004, idle_s=0.16, load=0.9)
    hub.queue.add(0.0005)
    times = TargetTimes(60, num_rounds=20, num_proposals=20, seconds=1.0, wait_s=0.0131, link_s=0.001)
    turns = {(service, 1): [ServedTurn(hub, [times])] for service in real_star.SERVICES}
    row = real_star._row(real_star.SINGLE, 1, turns, turns)
    printed = {column.title: column.cell(row) for column in real_star.COLUMNS}
    assert (printed["T_wait"], printed["T_idle"], printed["in all, s"]) == ("0.5", "4.0", "0.2")
