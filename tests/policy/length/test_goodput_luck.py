"""What goodput makes of luck beside requests with a depth of their own, and of anything that may be known or not."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighing_toys import STEP_S, measured, sequence

from starspec.policy.deadline import Round
from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.goodput import MOST_HALVED, PROBE_STEPS, Goodput
from starspec.policy.length.round_cost import RoundTimes
from starspec.policy.length.snapshot import OFF, Choice, RoundSnapshot, SequenceSnapshot
from starspec.policy.length.trials import CREDIT_ROUNDS, Trials
from starspec.speculation.budget import DraftBudget

POLICY = Goodput(DraftBudget.chain(4))


def choose(
    batch: list[SequenceSnapshot], costs: Costs, trials: Trials, now_s: float = 0.0, num_emitted: int = 0
) -> list[Choice]:
    snapshot = RoundSnapshot(
        sequences=batch, num_sequences=len(batch), now_s=now_s, costs=costs, trials=trials, num_emitted=num_emitted
    )
    return POLICY.choose(snapshot)


def drafted(*accepted: int, asked: int | None = None) -> SequenceSnapshot:
    """A sequence of whose drafts of four so many tokens were accepted."""
    acceptance = Acceptance()
    for each in accepted:
        acceptance.add(4, each)
    return replace(sequence(), acceptance=acceptance, num_steps_asked=asked)


def by_token(token_s: float) -> Costs:
    """Each draft token takes so long, whoever gets it."""
    costs = replace(measured(), rounds=RoundTimes())
    for lengths in ([1], [2], [4], [1, 1], [2, 2], [4, 4]) * 6:
        costs.rounds.add(Round(lengths, token_s * sum(lengths)))
    return costs


def cost_s(trials: Trials) -> float:
    """What trials have cost, to a thousandth of a second, where none of the time was for trials."""
    credit_s = CREDIT_ROUNDS * STEP_S
    return credit_s - max(each / 1000 for each in range(-1000, 1000) if trials.allows(each / 1000, STEP_S))


def test_luck_in_a_draft_that_a_request_asked_for_promises_nothing_to_others() -> None:
    """Else each round would count as a trial, and the other sequence would get no probe."""
    own, other = drafted(2, 2, asked=4), sequence(0.02, is_idle=True)
    trials = Trials()
    assert choose([own, other], by_token(0.06), trials)[0] == Choice(DraftBudget.chain(4))
    assert trials.open is not None
    assert trials.tried == [other.acceptance]


def test_a_promise_is_over_what_the_same_luck_brings_without_it() -> None:
    """It is 6% here. The luck of the draft that was asked for would make it 15%, and five rounds are left for that."""
    own, few = drafted(2, 2, asked=1), drafted(2, 2)
    left, spent = Trials(), Trials()
    spent.spend((CREDIT_ROUNDS + 3.0) * STEP_S)
    costs = by_token(0.035)
    assert [each.reason for each in choose([own, few], costs, left)] == ["cap", "probe"]
    assert [each.reason for each in choose([own, few], costs, spent)] == ["cap", "off"]


def test_good_luck_beside_a_request_with_its_own_depth_begins_nothing_either() -> None:
    own, few, many = drafted(4, asked=1), drafted(4), drafted(*[4] * 10)
    trials = Trials()
    costs = by_token(0.036)
    assert [each.reason for each in choose([own, few], costs, trials)] == ["cap", "probe"]
    assert not trials.was_drafting
    assert [each.reason for each in choose([own, many], costs, trials)] == ["cap", "cap"]
    assert trials.was_drafting


def test_no_round_with_a_draft_that_a_request_asked_for_is_tried_without_drafts() -> None:
    """It would not be a plain round, so nothing would be learnt."""
    unmeasured = measured(dict.fromkeys((1, 100), STEP_S), wait_s=0.2)
    for asked, lengths in ((None, [0, 0]), (2, [2, 4])):
        trials = Trials()
        trials.was_drafting = True
        chosen = choose([replace(sequence(), num_steps_asked=asked), sequence()], unmeasured, trials)
        assert [each.budget.num_steps for each in chosen] == lengths


def test_a_trial_is_not_charged_with_what_the_draft_costs_that_a_request_asked_for() -> None:
    trials = Trials()
    own, idle = sequence(0.1), sequence(0.1, is_idle=True)
    own = replace(own, num_steps_asked=4)
    costs = by_token(0.04)
    assert [each.budget.num_steps for each in choose([own, idle], costs, trials)] == [4, PROBE_STEPS]
    assert cost_s(trials) == pytest.approx(PROBE_STEPS * 0.04 - 0.11 / 2.11 * 0.26, abs=0.004)


@pytest.mark.parametrize("num_given", [2, 4, 6])
def test_tokens_of_a_trial_are_worth_what_they_take_in_what_seems_best(num_given: int) -> None:
    """Drafts of one sequence give (1 + 4) + 1 tokens in as long as two plain rounds: 1.5 times as fast as without."""
    good, idle = sequence(1.0), sequence(0.1, is_idle=True)
    trials, costs = Trials(), by_token(0.025)
    trials.was_drafting = True
    assert [each.budget.num_steps for each in choose([good, idle], costs, trials)] == [4, PROBE_STEPS]
    gain = 6 / 2 * STEP_S / 0.2
    took_s, token_s = 0.2 + PROBE_STEPS * 0.025, STEP_S / 2 / gain
    assert cost_s(trials) == pytest.approx(took_s - 6.11 * token_s, abs=0.004), "as expected"
    choose([sequence(0.0, room=1)] * 2, costs, trials, took_s, num_given)
    assert cost_s(trials) == pytest.approx(took_s - num_given * token_s, abs=0.006)


def test_a_draft_that_was_never_right_ends_as_configured() -> None:
    """After tens of thousands of failures no division of its rate may overflow."""
    never = replace(sequence(), acceptance=Acceptance(1e-312), num_steps_asked=4)
    snapshot = RoundSnapshot(sequences=[never], num_sequences=1, costs=by_token(0.01), trials=Trials())
    (chosen,) = Goodput(DraftBudget.chain(8, 0.4)).choose(snapshot)
    assert chosen.budget == DraftBudget.chain(4, 0.4)


seconds = st.one_of(st.just(0.0), st.floats(1e-7, 10.0))
drafts = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3)), max_size=6)


@st.composite
def sequences(draw: st.DrawFn, usual: Acceptance) -> SequenceSnapshot:
    acceptance = Acceptance(usual=usual)
    for num_drafted, num_accepted, num_missing in draw(drafts) * draw(st.sampled_from([1, 1, 20])):
        for each in (acceptance, usual):
            each.add(num_drafted, min(num_drafted, num_accepted), num_drafted + num_missing)
    num_tokens = draw(st.integers(1, 500))
    is_held = draw(st.booleans())
    return SequenceSnapshot(
        max_remaining_tokens=draw(st.integers(1, 20)),
        num_steps_asked=draw(st.sampled_from([None, None, None, 0, 3, 9])),
        max_draft_tokens=draw(st.integers(0, 64)),
        num_tokens=num_tokens,
        num_to_prefill=0 if is_held else num_tokens,
        num_behind=draw(st.integers(0, 9)) if is_held else 0,
        is_held=is_held,
        is_new=draw(st.booleans()),
        acceptance=draw(st.sampled_from([acceptance, acceptance, None])),
    )


@st.composite
def known_costs(draw: st.DrawFn) -> Costs:
    costs = Costs()
    for size, step_s in draw(st.dictionaries(st.integers(1, 40), st.floats(1e-7, 10.0), max_size=5)).items():
        costs.steps.add(size, step_s)
    for lengths, wait_s in draw(st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=4), seconds))):
        costs.rounds.add(Round(lengths, wait_s))
    if draw(st.booleans()):
        costs.prefill.add_request(100, None)
        if draw(st.booleans()):
            costs.prefill.add_wait(draw(seconds))
            costs.prefill.end()
    return costs


budgets = st.builds(
    lambda chain, tree, is_chain, p_min: replace(chain if is_chain else tree, p_min=p_min),
    st.builds(DraftBudget.chain, st.integers(0, 12)),
    st.builds(
        lambda nodes, steps, top_k: DraftBudget(nodes, steps, top_k).limited(),
        st.integers(1, 64),
        st.integers(1, 8),
        st.integers(2, 8),
    ),
    st.booleans(),
    st.sampled_from([0.0, 0.4, 1.0]),
)


@given(st.data(), budgets, known_costs(), st.lists(st.tuples(seconds, st.integers(0, 9), st.booleans()), max_size=5))
def test_whatever_is_known_each_sequence_gets_a_draft_that_fits_and_the_account_stays_finite(
    data: st.DataObject, budget: DraftBudget, costs: Costs, rounds: list[tuple[float, int, bool]]
) -> None:
    """Rounds of the same sequences: drafts that came or not, interruptions, others of the round, and long pauses."""
    usual = Acceptance()
    batch = [data.draw(sequences(usual)) for _ in range(data.draw(st.integers(1, 4)))]
    trials, now_s, num_emitted = Trials(), 0.0, 0
    trials.was_drafting = data.draw(st.booleans())
    for passed_s, num_given, is_odd in [(0.0, 0, False), *rounds]:
        now_s, num_emitted = now_s + passed_s * (1000.0 if is_odd else 1.0), num_emitted + num_given
        snapshot = RoundSnapshot(
            sequences=batch,
            num_sequences=len(batch) + (is_odd and num_given % 3),
            now_s=now_s,
            costs=costs,
            trials=trials,
            num_emitted=num_emitted,
            was_interrupted=is_odd and num_given % 2 == 1,
        )
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            chosen = Goodput(budget).choose(snapshot)
        for each, choice in zip(batch, chosen, strict=True):
            assert choice.budget == each.fitting(choice.budget)
            if each.num_steps_asked is not None:
                asked = each.fitting(budget.with_steps(each.num_steps_asked))
                assert choice.budget.num_steps == asked.num_steps
            elif choice.budget.num_steps:
                assert choice.budget.num_steps <= budget.num_steps
            else:
                assert choice.budget == OFF.budget
        drafting = [each.budget for each in chosen if each.budget.num_draft_tokens]
        for given_budget in drafting:
            most = budget.p_min / len(drafting)
            assert most * 0.5**MOST_HALVED <= given_budget.p_min <= most
        assert trials.allows(-1e9, 1.0)
        assert not trials.allows(1e9, 1.0)
        for each in batch:
            if each.acceptance is not None and data.draw(st.booleans()):
                each.acceptance.add(0, 0)
    assert trials.deepest < inf
