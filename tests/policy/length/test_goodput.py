"""Goodput's decisions from known costs, at the edges, and what it tries out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from starspec.policy.deadline import Round
from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.goodput import PROBE_STEPS, Goodput
from starspec.policy.length.snapshot import LengthPolicy, RoundSnapshot, SequenceSnapshot
from starspec.policy.length.trials import Trials
from starspec.policy.length.weighed_round import FIRST_STEPS
from starspec.speculation.budget import DraftBudget

POLICY = Goodput(DraftBudget.chain(8))


def known(step_s: float = 0.01, wait_s: float = 0.0, token_s: float = 0.0, most: int = 64) -> Costs:
    """A target step takes `step_s` for one token and `token_s` for each more; a draft step `wait_s`."""
    costs = Costs()
    for size in range(1, most + 1):
        for _ in range(3):
            costs.steps.add(size, step_s + token_s * (size - 1))
    for depth in (1, 2, 4, 8) * 4:
        costs.rounds.add(Round([depth], wait_s * depth))
    return costs


def accepted(share: float, num_rounds: int = 50, length: int = 4) -> Acceptance:
    acceptance = Acceptance()
    for number in range(num_rounds):
        num_accepted = int((number + 1) * share * length) - int(number * share * length)
        acceptance.add(length, num_accepted)
    return acceptance


def idle(share: float) -> Acceptance:
    acceptance = accepted(share)
    for _ in range(20):
        acceptance.add(0, 0)
    return acceptance


def chosen(
    costs: Costs, *acceptances: Acceptance | None, policy: LengthPolicy = POLICY, now_s: float = 0.0, **fields: int
) -> list[int]:
    sequences = [
        SequenceSnapshot(acceptance=each, **{"max_remaining_tokens": 99, **fields})  # type: ignore[arg-type]
        for each in acceptances
    ]
    trials = Trials()
    trials.spend(1e9)  # nothing is tried
    snapshot = RoundSnapshot(sequences=sequences, num_sequences=len(sequences), now_s=now_s, costs=costs, trials=trials)
    return [each.budget.num_steps for each in policy.choose(snapshot)]


def test_free_drafts_are_as_long_as_they_may_be_and_dear_ones_are_none() -> None:
    assert chosen(known(), accepted(1.0)) == [8]
    assert chosen(known(wait_s=0.1), accepted(1.0)) == [0]


def test_a_sequence_whose_drafts_fail_gets_shorter_ones_than_its_neighbour() -> None:
    costs = known(wait_s=0.0005, token_s=0.001)
    poor, good = chosen(costs, accepted(0.2), accepted(1.0))
    assert poor < good


def test_a_dear_target_step_shortens_drafts_of_large_batches() -> None:
    costs = known(wait_s=0.0005, token_s=0.0015, most=160)
    alone, together = chosen(costs, accepted(0.6)), chosen(costs, *[accepted(0.6)] * 16)
    assert alone[0] > 0
    assert max(together) < alone[0]


def test_what_remains_the_drafter_and_the_budget_limit_a_draft() -> None:
    assert chosen(known(), accepted(1.0), max_remaining_tokens=1) == [0]
    assert chosen(known(), accepted(1.0), max_remaining_tokens=4) == [3]
    assert chosen(known(), accepted(1.0), max_draft_tokens=2) == [2]
    assert chosen(known(), accepted(1.0), policy=Goodput(DraftBudget.chain(3))) == [3]
    assert chosen(known(), accepted(1.0), policy=Goodput(DraftBudget.chain(0))) == [0]


@pytest.mark.parametrize("asked", [0, 3, 20])
def test_a_requests_own_depth_comes_first(asked: int) -> None:
    free, dear = known(), known(wait_s=0.1)
    for costs in (Costs(), free, dear):
        assert chosen(costs, accepted(0.9), num_steps_asked=asked) == [asked]
    assert chosen(free, accepted(1.0), num_steps_asked=asked, max_remaining_tokens=3) == [min(asked, 2)]


def test_before_anything_is_known_a_short_draft_is_tried() -> None:
    assert chosen(Costs(), None) == [FIRST_STEPS]
    assert POLICY.choose(RoundSnapshot(sequences=[], num_sequences=0)) == []


def test_sequences_without_drafts_are_probed_as_far_as_time_allows() -> None:
    costs = known(wait_s=0.05)
    sequences = [SequenceSnapshot(max_remaining_tokens=99, acceptance=idle(0.1)) for _ in range(4)]
    now_s, trials = 0.0, Trials()

    def probed(trials: Trials) -> int:
        nonlocal now_s
        snapshot = RoundSnapshot(sequences=sequences, num_sequences=4, now_s=now_s, costs=costs, trials=trials)
        lengths = [each.budget.num_steps for each in POLICY.choose(snapshot)]
        assert set(lengths) <= {0, PROBE_STEPS}
        now_s += 0.05 + 0.1 * any(lengths)  # a probe's wait is 0.1 s
        return sum(map(bool, lengths))

    counts = [probed(trials) for _ in range(4000)]
    assert 0 < sum(map(bool, counts)) * 0.1 <= 0.01 * now_s + 0.2


def test_an_hour_without_requests_is_not_tried_away() -> None:
    costs, trials = known(wait_s=0.01), Trials()
    trials.spend(1.0)
    num_probed = 0
    for number in range(200):
        now_s = 0.01 * number + 3600.0 * (number > 0)
        snapshot = RoundSnapshot(
            sequences=[SequenceSnapshot(acceptance=idle(0.0), max_remaining_tokens=99)],
            num_sequences=1,
            now_s=now_s,
            costs=costs,
            trials=trials,
        )
        num_probed += POLICY.choose(snapshot)[0].budget.num_steps > 0
    assert num_probed == 0


def gaining(gain: float) -> RoundSnapshot:
    """A round in which a draft of one token, the most, makes the tokens come so many times as fast."""
    rate = accepted(0.8)
    costs = known(wait_s=0.01 * ((1.0 + rate.rate) / gain - 1.0))  # (1 + rate) tokens in 0.01 s and the wait
    sequence = SequenceSnapshot(max_remaining_tokens=2, acceptance=rate)
    return RoundSnapshot(sequences=[sequence], num_sequences=1, costs=costs)


@pytest.mark.parametrize(
    ("gain", "begins", "goes_on"),
    [(0.98, False, False), (1.0, False, True), (1.02, False, True), (1.04, False, True), (1.1, True, True)],
)
def test_a_small_gain_goes_on_and_does_not_begin(gain: float, begins: bool, goes_on: bool) -> None:
    def is_drafting(*gains: float) -> bool:
        """In the last of rounds that gain so much. With an acceptance lower by its error, they gain 4% less."""
        trials = Trials()
        trials.spend(1e9)  # nothing is tried
        rounds = [replace(gaining(each), trials=trials) for each in gains]
        return [POLICY.choose(each)[0].budget.num_steps > 0 for each in rounds][-1]

    assert is_drafting(gain) == is_drafting(0.9, gain) == begins
    assert is_drafting(1.1, gain) == goes_on
    assert is_drafting(1.1, 0.9, gain) == begins


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_tree_keeps_its_width(top_k: int) -> None:
    tree = DraftBudget(12, 6, top_k)
    costs = known()
    (chosen,) = Goodput(tree).choose(
        RoundSnapshot(
            sequences=[SequenceSnapshot(max_remaining_tokens=99, acceptance=accepted(1.0))],
            num_sequences=1,
            costs=costs,
        )
    )
    assert (chosen.budget.num_steps, chosen.budget.top_k) == (6, top_k)


@pytest.mark.parametrize("num_sequences", [1, 2, 5])
def test_sequences_that_share_draft_steps_share_the_doubt_that_ends_them(num_sequences: int) -> None:
    sequences = [SequenceSnapshot(max_remaining_tokens=99, acceptance=accepted(1.0)) for _ in range(num_sequences)]
    snapshot = RoundSnapshot(sequences=sequences, num_sequences=num_sequences, costs=known(wait_s=0.006))
    choices = Goodput(DraftBudget.chain(8, 0.3)).choose(snapshot)
    assert [each.budget.p_min for each in choices] == [pytest.approx(0.3 / num_sequences)] * num_sequences


@pytest.mark.parametrize(("wait_s", "num_halved"), [(0.005, 0), (0.002, 0), (0.0008, 1), (0.0003, 2), (0.0, 4)])
def test_a_draft_ends_where_its_next_step_takes_as_long_as_it_saves(wait_s: float, num_halved: int) -> None:
    acceptance = accepted(0.7)
    sequences = [SequenceSnapshot(max_remaining_tokens=99, acceptance=acceptance)]
    snapshot = RoundSnapshot(sequences=sequences, num_sequences=1, costs=known(wait_s=wait_s))
    ((budget, _),) = Goodput(DraftBudget.chain(8, 0.4)).choose(snapshot)
    assert budget.p_min == pytest.approx(0.4 * 0.5**num_halved)
    num_tokens = 1 + sum(acceptance.rate**depth for depth in range(1, budget.num_steps + 1))
    token_s = (0.01 + wait_s * budget.num_steps) / num_tokens
    worth = wait_s / token_s / acceptance.rate
    if 0.4 / 16 < worth < 0.4:
        assert 2**-0.51 < budget.p_min / worth < 2**0.51


def test_before_draft_steps_were_measured_drafts_end_as_configured() -> None:
    costs = Costs()
    costs.steps.add(1, 0.01)
    snapshot = RoundSnapshot(sequences=[SequenceSnapshot(max_remaining_tokens=99)], num_sequences=1, costs=costs)
    ((budget, _),) = Goodput(DraftBudget.chain(8, 0.4)).choose(snapshot)
    assert (budget.num_steps, budget.p_min) == (FIRST_STEPS, 0.4)
