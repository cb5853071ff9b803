"""What rounds of any lengths, and trials of them, are expected to cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from weighing_toys import STEP_S, measured, sequence

from starspec.policy.deadline import Round
from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.round_cost import RoundTimes
from starspec.policy.length.snapshot import RoundSnapshot, SequenceSnapshot
from starspec.policy.length.weighed_round import MOST_HOPED, WeighedRound
from starspec.speculation.budget import DraftBudget

CHAIN = DraftBudget.chain(4)


def weighed(
    sequences: list[SequenceSnapshot], costs: Costs, budget: DraftBudget = CHAIN, num_others: int = 0
) -> WeighedRound:
    num = len(sequences) + num_others
    return WeighedRound(budget, RoundSnapshot(sequences=sequences, num_sequences=num, costs=costs))


def by_node(node_s: float, num_nodes: list[int], token_s: float = 0.0) -> Costs:
    """A draft of so many nodes takes so long for each, and a target's step 0.1 s and so much for each token."""
    costs = replace(measured({size: STEP_S + token_s * size for size in range(1, 100)}), rounds=RoundTimes())
    for each in num_nodes * 8:
        costs.rounds.add(Round([each], node_s * each))
    return costs


rates = st.floats(0.05, 0.95)


@given(st.lists(st.tuples(rates, st.integers(0, 4)), min_size=1, max_size=4), st.floats(0.0, 0.3), st.booleans())
def test_what_seems_best_costs_nothing_as_a_trial_unless_no_drafts_would_be_better(
    rows: list[tuple[float, int]], wait_s: float, are_asked: bool
) -> None:
    """So a trial of other lengths costs what it takes longer for its tokens than what seems best."""
    batch = [replace(sequence(rate), num_steps_asked=length if are_asked else None) for rate, length in rows]
    lengths = [length for _, length in rows]
    trial = weighed(batch, measured(wait_s=wait_s)).trial_of(lengths, lengths)
    num_tokens = 1.0 + sum(sum(rate**depth for depth in range(1, length + 1)) for rate, length in rows) / len(rows)
    assert trial.cost_s == pytest.approx(0.0 if are_asked else max(0.0, trial.round_s - num_tokens * STEP_S), abs=1e-9)
    assert trial.tokens_s * trial.speedup == pytest.approx(num_tokens * STEP_S)


@given(st.lists(st.tuples(rates, st.integers(1, 4), st.booleans()), min_size=2, max_size=4), st.floats(0.0, 0.2))
def test_the_cheapest_test_costs_least_as_a_trial_for_each_token_that_it_tests(
    rows: list[tuple[float, int, bool]], node_s: float
) -> None:
    rows[0] = (*rows[0][:2], True)
    known = weighed([sequence(rate) for rate, *_ in rows], by_node(node_s, [1, 2, 3, 4]))
    best = [0 if is_tested else length for _, length, is_tested in rows]
    tests = [[depth if is_tested else length for _, length, is_tested in rows] for depth in range(1, 5)]

    def cost_s(lengths: list[int]) -> float:
        num_tested = sum(sum(rate**each for each in range(lengths[0] + 1)) for rate, _, is_tested in rows if is_tested)
        more_s = known.trial_of(lengths, best).cost_s - known.trial_of(best, best).cost_s
        return more_s / num_tested

    assert cost_s(known.cheapest_test(tests, best)) == pytest.approx(min(map(cost_s, tests)))


@pytest.mark.parametrize(("first", "tested"), [(0, 4), (2, 2)])
def test_beside_drafts_that_pay_tokens_of_a_test_are_worth_less(first: int, tested: int) -> None:
    known = weighed([sequence(0.88), sequence(0.6)], by_node(0.005, [1, 2, 3, 4]))
    assert known.cheapest_test([[first, 2], [first, 4]], [first, 0]) == [first, tested]


@pytest.mark.parametrize("num_errors", [-1.0, 1.5])
@example([-1, 4] * 30, 0.8, 1.0)
@given(st.lists(st.integers(-1, 4), max_size=60), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_luck_moves_the_speed_of_drafts_in_its_direction_and_of_no_others(
    num_errors: float, accepted: list[int], first_rate: float, first_reach: float
) -> None:
    acceptance = Acceptance(first_rate, first_reach)
    for each in accepted:  # -1: the draft ended after a first token, which was wrong
        acceptance.add(4 if each >= 0 else 1, max(0, each), 4)
    batch = [SequenceSnapshot(max_remaining_tokens=99, acceptance=acceptance)]
    free = weighed(batch, measured(wait_s=0.0))
    known, lucky = (free.weigh([4], 0.0, num_errors=each).tokens_per_s for each in (0.0, num_errors))
    assert known is not None
    assert lucky is not None
    assert (lucky - known) * num_errors >= -1e-9
    most = max(acceptance.rate, MOST_HOPED)
    rate = min(most, max(0.0, acceptance.rate + num_errors * acceptance.error))
    gain = min(1.0, acceptance.gain * rate / acceptance.rate) if acceptance.rate else acceptance.gain
    assert lucky * STEP_S == pytest.approx(1.0 + sum(rate * gain**depth for depth in range(4)), rel=1e-6)
    without = [free.weigh([0], 0.0, num_errors=each).tokens_per_s for each in (0.0, num_errors)]
    assert without == [pytest.approx(1.0 / STEP_S)] * 2


@pytest.mark.parametrize(("num_sequences", "token_s"), [(1, 0.0), (1, 0.001), (4, 0.001)])
@pytest.mark.parametrize(
    ("budget", "num_nodes"), [(CHAIN, [1, 2, 3, 4]), (DraftBudget(64, 4, 2), [2, 6, 10, 14])], ids=["chain", "tree"]
)
def test_behind_which_path_a_draft_step_takes_as_long_as_it_saves(
    budget: DraftBudget, num_nodes: list[int], num_sequences: int, token_s: float
) -> None:
    """A step has the nodes of its depth. Sequences share it at the hub, and have nodes of their own at the target."""
    node_s, rate, tokens_per_s = 0.02, 0.8, 15.0
    batch = [sequence(rate)] * num_sequences
    known = weighed(batch, by_node(node_s, num_nodes, token_s), budget)
    saved_s = rate / tokens_per_s  # by the step, if the path is right
    worth = num_nodes[2] / 3 * (node_s / num_sequences + token_s) / saved_s
    assert known.break_even([3] * num_sequences, tokens_per_s) == [pytest.approx(worth, rel=0.02)] * num_sequences


def test_where_a_hub_takes_longer_for_each_token_its_tokens_are_not_shared() -> None:
    costs = replace(measured(), rounds=RoundTimes())
    for lengths in ([1], [2], [4], [1, 1], [2, 2], [4, 4]) * 6:
        costs.rounds.add(Round(lengths, 0.02 * sum(lengths)))
    worth = 0.02 * 15.0 / 0.8
    assert weighed([sequence(0.8)] * 2, costs).break_even([3, 3], 15.0) == [pytest.approx(worth, rel=0.02)] * 2
