"""Which measurement belongs to which cost, and what is forgotten with a hub."""

from __future__ import annotations

import numpy as np
import pytest
from weighing_toys import STEP_S, measured

from starspec.policy.length.costs import Costs


def test_costs_of_another_hub_are_forgotten_and_those_of_steps_kept() -> None:
    costs = measured(wait_s=9.0)
    assert costs.rounds.cost.seconds_of([4]) == pytest.approx(9.0, rel=0.01)
    costs = Costs(costs.steps, costs.output_len)
    assert costs.rounds.cost.seconds_of([4]) == 0.0
    assert costs.steps


def test_beside_prefill_no_step_is_measured_as_usual() -> None:
    costs = measured({1: STEP_S})
    costs.prefill.add_request(100, None)
    costs.add_step(1, 1.5 * STEP_S)
    costs.add_step(None, 5.0)
    costs.prefill.add_answer(100, 0)
    costs.prefill.end()
    assert float(costs.steps.predict(np.array([1.0]))[0]) == pytest.approx(STEP_S)
    assert costs.prefill.seconds(100) == pytest.approx(2 * 0.5 * STEP_S)
