"""Which sequences of a round draft, probe, or wait, by what is known of their costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from weighing_toys import STEP_S, measured, sequence

from starspec.policy.length.costs import Costs
from starspec.policy.length.experiments import MAX_DEFERRED, PLAIN_PAUSE, PROBE_EVERY, PROBE_TOKENS, Experiments
from starspec.policy.length.measured_speed import MeasuredSpeed
from starspec.policy.length.snapshot import RoundSnapshot, SequenceSnapshot


def choose(
    sequences: list[SequenceSnapshot], costs: Costs | None, experiments: Experiments | None = None, now_s: float = 0.0
) -> list[int]:
    snapshot = RoundSnapshot(
        sequences=sequences, num_sequences=len(sequences), now_s=now_s, costs=costs, experiments=experiments
    )
    return [each.budget.num_draft_tokens for each in MeasuredSpeed(4).choose(snapshot)]


def test_without_costs_what_is_likely_is_drafted() -> None:
    assert choose([sequence(0.9), sequence(0.6), sequence(0.1)], None) == [4, 2, 0]
    assert choose([SequenceSnapshot(max_remaining_tokens=99)], None) == [4], "nor is its acceptance known"
    assert choose([], None) == []


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_draft_is_longer_than_sequence_and_drafter_allow(most: int) -> None:
    assert choose([sequence(1.0, room=most + 1)], measured()) == [most]
    assert choose([replace(sequence(1.0), max_draft_tokens=most)], measured()) == [most]


def test_a_policy_decides_alike_from_equal_snapshots() -> None:
    costs = measured()
    assert choose([sequence()] * 3, costs) == choose([sequence()] * 3, costs) == [4] * 3


def test_idle_sequences_probe_now_and_then_where_no_drafts_pay() -> None:
    experiments, costs = Experiments(), measured(wait_s=9.0)
    found = [choose([sequence(is_idle=True)], costs, experiments) for _ in range(PROBE_EVERY)]
    assert found == [[0]] * (PROBE_EVERY - 1) + [[PROBE_TOKENS]]


def test_a_hub_prefills_the_shortest_of_the_idle_sequences_for_a_probe() -> None:
    lengths = (70, 30, 50)
    experiments, costs = Experiments(), measured(wait_s=9.0)
    for _ in range(PROBE_EVERY):
        found = choose([sequence(is_idle=True, num_to_prefill=each) for each in lengths], costs, experiments)
    assert found == [0, PROBE_TOKENS, 0]


def test_a_round_goes_plain_where_its_time_without_drafts_was_not_measured_lately() -> None:
    experiments, costs = Experiments(), measured({1: STEP_S, 100: STEP_S})
    found = [choose([sequence(), sequence()], costs, experiments) for _ in range(PLAIN_PAUSE + 1)]
    assert found.count([0, 0]) == 1
    assert found[PLAIN_PAUSE - 1] == [0, 0]


def test_prompts_wait_for_a_few_rounds_while_no_step_of_so_many_was_measured() -> None:
    experiments, costs = Experiments(), measured({1: STEP_S})
    found = [choose([sequence(num_to_prefill=30)] * 2, costs, experiments) for _ in range(MAX_DEFERRED + 1)]
    assert found == [[0, 0]] * MAX_DEFERRED + [[4, 4]]


def test_the_shorter_prompts_are_prefilled_where_all_together_are_not_worth_it() -> None:
    costs = measured()
    costs.prefill.add_request(1000, 0.0)
    costs.prefill.add_step(2.0, 1.0)  # 1 ms a token
    costs.prefill.add_answer(1000, 0)
    costs.prefill.end(0.0)
    prompts = [sequence(num_to_prefill=each) for each in (9000, 40)]
    assert choose(prompts, costs, Experiments()) == [0, 4]
    assert choose([sequence(num_to_prefill=9000), sequence()], costs, Experiments()) == [0, 4]


def test_costs_of_another_hub_are_forgotten_and_those_of_steps_kept() -> None:
    costs = measured(wait_s=9.0)
    assert choose([sequence()], costs) == [0]
    costs = Costs(costs.steps, costs.output_len)
    assert choose([sequence()], costs) == [4]
    assert costs.steps


def test_beside_prefill_no_step_is_measured_as_usual() -> None:
    costs = measured({1: STEP_S})
    costs.prefill.add_request(100, None)
    costs.add_step(1, 1.5 * STEP_S)
    costs.add_step(None, 5.0)
    costs.prefill.add_answer(100, 0)
    costs.prefill.end(0.0)
    assert float(costs.steps.predict(np.array([1.0]))[0]) == pytest.approx(STEP_S)
    assert costs.prefill.seconds(100) == pytest.approx(2 * 0.5 * STEP_S)
