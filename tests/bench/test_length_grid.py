"""The length policies in virtual time: a sample of `starspec bench length`."""

from __future__ import annotations

import pytest

from starspec.bench.length.grid import POLICIES, GridPlan, LengthRow, measure_scene, ratios_of
from starspec.bench.length.simulation import Scene, Simulation
from starspec.policy.length.fixed import FixedLength
from starspec.policy.length.goodput import Goodput
from starspec.policy.length.snapshot import LengthPolicy
from starspec.speculation.budget import DraftBudget

SCENES = [
    Scene(0.8, 0.1),
    Scene(0.95, 0.1, "flat", 2.0, 1, 4),
    Scene(0.2, 0.4, "linear", 2.0, 4, 8),
    Scene("drifting", 0.1, "knee", 0.5, 1, 4),
    Scene("bimodal", 0.03, "flat", 0.5, 4, 1),
    Scene(0.5, 0.03, "knee", 0.5, 16, 1),
]


@pytest.fixture(scope="module")
def rows() -> list[LengthRow]:
    return [measure_scene(scene, 800) for scene in SCENES]


def test_goodput_is_as_fast_as_the_best_fixed_length_and_never_slower_than_plain(rows: list[LengthRow]) -> None:
    ratios = ratios_of(rows)
    assert ratios["goodput_vs_static_opt_mean"] >= 1.0
    assert ratios["goodput_vs_static_opt_min"] >= 0.95
    assert ratios["goodput_vs_plain_min"] >= 0.97  # 0.98 of longer runs: the first trials count for less


def speed(scene: Scene, policy: LengthPolicy) -> float:
    return Simulation(scene, policy).run(1000)


def test_where_only_long_drafts_pay_they_are_found() -> None:
    """A chain of two is slower than plain decoding, one of ten is 1.19 times as fast."""
    scene = Scene(0.95, 0.4, "knee", 2.0)
    assert speed(scene, POLICIES["goodput"]) >= 0.95 * speed(scene, FixedLength(DraftBudget.chain(10)))


@pytest.mark.parametrize("scene", [Scene(0.95, 0.1, "knee", 0.5, 4, 8), Scene(0.8, 0.4, "flat", 2.0)], ids=str)
def test_where_drafts_nearly_pay_trials_cost_little(scene: Scene) -> None:
    """They are made when chance makes a draft look better than it is, so too much is expected of them."""
    assert speed(scene, POLICIES["goodput"]) >= 0.98 * speed(scene, FixedLength(DraftBudget.chain(0)))


@pytest.mark.parametrize("acceptance", [0.8, 0.88])
def test_a_large_batch_does_not_try_deep_drafts_for_which_nothing_measured_speaks(acceptance: float) -> None:
    """Else one or two of them cost as much as all other trials of a short run."""
    scene = Scene(acceptance, 0.1, "linear", batch=16)
    plain = Simulation(scene, FixedLength(DraftBudget.chain(0)), weighs_costs=False).run(120)
    assert Simulation(scene, POLICIES["goodput"]).run(120) >= 0.97 * plain


def test_policies_that_know_no_costs_lose_to_plain_decoding_somewhere(rows: list[LengthRow]) -> None:
    ratios = ratios_of(rows)
    lowest = {name: ratios[f"{name}_vs_plain_min"] for name in ("dsde", "adaedl", "confidence")}
    assert max(lowest.values()) < 0.9, lowest
    assert ratios["without_waits_vs_static_opt_mean"] < ratios["goodput_vs_static_opt_mean"]


def test_a_fixed_length_takes_the_time_that_the_scene_says() -> None:
    scene = Scene(0.9, 0.1, "linear", 0.5, batch=2, num_targets=4)
    assert scene.target_step(9) == pytest.approx(1.0 + 0.15 * 8)
    # the round trip, half a draft step of others, and two draft steps: of eight rows, and of four
    assert scene.wait([2, 1]) == pytest.approx(0.5 + 0.05 + 0.1 * (1 + 0.15 * 7) + 0.1 * (1 + 0.15 * 3))
    simulation = Simulation(scene, FixedLength(DraftBudget.chain(0)))
    assert simulation.run(200) == pytest.approx(2 / scene.target_step(2))


def test_all_policies_meet_the_same_text() -> None:
    scene = Scene(0.6, 0.1)
    first, second = (Simulation(scene, FixedLength(DraftBudget.chain(4))).run(300) for _ in range(2))
    assert first == second
    assert Simulation(scene, FixedLength(DraftBudget.chain(4)), seed=2).run(300) != first


def test_the_grid_is_that_of_all_sides_and_a_part_of_it_has_every_value() -> None:
    assert len(GridPlan().scenes) == 6 * 3 * 3 * 3 * 3 * 3
    part = GridPlan(every=37).scenes
    for side in ("acceptance", "draft_step", "curve", "round_trip", "batch", "num_targets"):
        assert {getattr(each, side) for each in part} == {getattr(each, side) for each in GridPlan().scenes}


def test_every_policy_serves_a_request_to_its_end() -> None:
    for policy in (*POLICIES.values(), Goodput(DraftBudget(12, 4, 2))):
        assert Simulation(Scene(0.7, 0.1, batch=3), policy).run(100) > 0.0
