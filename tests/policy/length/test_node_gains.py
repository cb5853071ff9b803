"""What smaller trees would have gained, and how many nodes are worth their rows."""

from __future__ import annotations

import pytest
from weighing_toys import measured

from starspec.policy.length.costs import Costs
from starspec.policy.length.goodput import Goodput
from starspec.policy.length.node_gains import NUM_PRIOR, NodeGains, with_worthy_nodes
from starspec.policy.length.snapshot import RoundSnapshot, SequenceSnapshot
from starspec.policy.length.trials import Trials
from starspec.speculation.budget import DraftBudget

TREE = DraftBudget(16, 2, 4)
BY_ROW = {1: 0.1, 17: 1.7}  # a row of a target's step takes as long as any other: none is free
FLAT = {1: 0.1, 17: 0.1}


def gains_of(accepted: list[list[int]], num_nodes: int = 16) -> NodeGains:
    gains = NodeGains()
    for each in accepted:
        gains.add(each, num_nodes)
    return gains


def nodes_of(gains: NodeGains, costs: Costs, budget: DraftBudget = TREE, num_sequences: int = 1) -> int:
    return with_worthy_nodes(budget, gains, num_sequences, costs).num_draft_tokens


def test_rates_are_those_of_places_each_counted_with_the_one_before_it() -> None:
    assert NodeGains().rates(3).tolist() == [1.0, 1.0, 1.0]
    gains = NodeGains()
    gains.add([0], 2)
    first = (1 + NUM_PRIOR) / (1 + NUM_PRIOR)
    second = (0 + NUM_PRIOR * first) / (1 + NUM_PRIOR)
    assert gains.rates(3).tolist() == pytest.approx([first, second, second]), "the third place was not drafted"


def test_after_many_proposals_rates_are_the_shares_that_were_accepted() -> None:
    rates = gains_of([[0, 1], [0], [], [0, 3]] * 500).rates(16)
    # by hand, with 100 proposals that count: 0.75, then (25 + 10 * 0.75) / 110, (0 + 10 * 0.29) / 110, ...
    assert rates[:2] == pytest.approx([0.77, 0.297], abs=0.01)
    assert list(rates) == sorted(rates, reverse=True), "no node is taken to be worth more than a likelier one"
    assert rates[4:].max() < 0.01


def test_nodes_that_are_hardly_ever_accepted_are_left_out_where_rows_cost_time() -> None:
    gains = gains_of([[0], [0], [0], []] * 500)
    assert nodes_of(gains, measured(BY_ROW)) == TREE.num_steps
    assert nodes_of(gains, measured(FLAT)) == TREE.num_draft_tokens, "rows that are free are kept"


def test_a_tree_is_kept_where_its_nodes_are_worth_their_rows() -> None:
    wide = gains_of([[0, 5], [1, 6], [2, 7], [3, 4]] * 500)  # each of eight places a quarter of the time
    slow = measured({1: 0.1, 9: 0.12, 17: 1.7})
    assert nodes_of(wide, slow) == 8, "half of it: the other half makes steps much longer and gains nothing"
    assert nodes_of(wide, measured(FLAT)) == TREE.num_draft_tokens


def test_what_is_not_known_is_tried_with_all_nodes() -> None:
    assert nodes_of(gains_of([[]] * 500), Costs()) == TREE.num_draft_tokens
    assert nodes_of(NodeGains(), measured(BY_ROW)) == TREE.num_draft_tokens


def test_places_that_were_left_out_for_long_are_thought_as_good_as_the_last_one_again() -> None:
    gains = gains_of([[0], [1]] * 200)
    assert gains.rates(16)[2] < 0.1
    for number in range(10_000):
        gains.add([number % 2], 2)
    assert gains.rates(16)[2:].tolist() == pytest.approx([gains.rates(2)[1]] * 14, rel=0.02)


def test_a_smaller_tree_must_gain_more_than_chance() -> None:
    gains = gains_of([[0, 1]] * 500)
    assert nodes_of(gains, measured({1: 0.1, 17: 0.102})) == TREE.num_draft_tokens, "1.3% with a quarter of the nodes"
    assert nodes_of(gains, measured({1: 0.1, 17: 0.108})) < TREE.num_draft_tokens


@pytest.mark.parametrize("budget", [DraftBudget.chain(8), DraftBudget(3, 3, 2)], ids=["chain", "no wider than deep"])
def test_nothing_is_left_of_a_chain_but_its_tokens(budget: DraftBudget) -> None:
    assert with_worthy_nodes(budget, gains_of([[]] * 500), 1, measured(BY_ROW)) == budget


def test_more_sequences_leave_fewer_nodes() -> None:
    gains = gains_of([[0, 2], [0, 3], [1, 4], [0]] * 500)
    knee = measured({1: 0.1, 17: 0.1, 160: 1.6})
    assert nodes_of(gains, knee, num_sequences=1) == TREE.num_draft_tokens
    assert nodes_of(gains, knee, num_sequences=8) < TREE.num_draft_tokens


@pytest.mark.parametrize(("steps", "num_nodes"), [(BY_ROW, 2), (FLAT, 16)], ids=["rows cost time", "rows are free"])
def test_goodput_asks_for_the_nodes_that_are_worth_their_rows(steps: dict[int, float], num_nodes: int) -> None:
    trials = Trials()
    trials.spend(1e9)  # nothing is tried
    (choice,) = Goodput(TREE).choose(
        RoundSnapshot(
            sequences=[SequenceSnapshot(max_remaining_tokens=99, num_steps_asked=2)],
            num_sequences=1,
            costs=measured(steps),
            trials=trials,
            nodes=gains_of([[0], [0, 1]] * 500),
        )
    )
    assert choice.budget == DraftBudget(num_nodes, 2, 4)
