"""Which sequences goodput has prefilled, which probe, which wait, and why it says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from weighing_toys import STEP_S, measured, sequence

from starspec.policy.deadline import Round
from starspec.policy.length.acceptance import Acceptance
from starspec.policy.length.costs import Costs
from starspec.policy.length.goodput import MAX_DEFERRED, PLAIN_EVERY, PROBE_STEPS, Goodput
from starspec.policy.length.round_cost import RoundTimes
from starspec.policy.length.snapshot import OFF, PLAIN_TRIAL, Choice, RoundSnapshot, SequenceSnapshot
from starspec.policy.length.trials import CREDIT_ROUNDS, PROMISED_ROUNDS, Trials
from starspec.speculation.budget import DraftBudget

POLICY = Goodput(DraftBudget.chain(4))
LONG = Goodput(DraftBudget.chain(8))


def choose(
    sequences: list[SequenceSnapshot],
    costs: Costs,
    trials: Trials | None = None,
    now_s: float = 0.0,
    num_emitted: int = 0,
    *,
    num_others: int = 0,
    was_interrupted: bool = False,
    policy: Goodput = POLICY,
) -> list[Choice]:
    snapshot = RoundSnapshot(
        sequences=sequences,
        num_sequences=len(sequences) + num_others,
        now_s=now_s,
        costs=costs,
        trials=trials or spent(),
        num_emitted=num_emitted,
        was_interrupted=was_interrupted,
    )
    return policy.choose(snapshot)


def lengths(chosen: list[Choice]) -> list[int]:
    return [each.budget.num_draft_tokens for each in chosen]


def spent() -> Trials:
    """An account that allows nothing."""
    trials = Trials()
    trials.spend(1e9)
    return trials


def drafting(trials: Trials) -> Trials:
    """The account after rounds with drafts."""
    trials.was_drafting = True
    return trials


@pytest.mark.parametrize(("asked", "length"), [(0, 0), (2, 2), (9, 9)])
def test_a_requests_own_depth_is_kept_whatever_it_costs(asked: int, length: int) -> None:
    own = replace(sequence(0.1), num_steps_asked=asked)
    for wait_s in (0.0, 9.0):
        chosen, other = choose([own, sequence(0.9)], measured(wait_s=wait_s))
        assert chosen == (Choice(DraftBudget.chain(length), "cap") if length else OFF)
        if not length:
            assert other.budget.num_draft_tokens == (4 if wait_s == 0.0 else 0)
    assert lengths(choose([replace(own, num_steps_asked=9, max_remaining_tokens=4)], measured())) == [3]


def test_a_hub_prefills_the_shortest_of_the_idle_sequences_for_a_probe() -> None:
    sequences = [sequence(0.1, is_idle=True, num_to_prefill=each) for each in (70, 30, 50)]
    chosen = choose(sequences, measured(dict.fromkeys((3, 100), STEP_S), wait_s=0.03), Trials())
    assert lengths(chosen) == [0, PROBE_STEPS, 0]
    assert [each.reason for each in chosen] == ["off", "probe", "off"]


def test_a_probe_is_charged_with_what_its_hub_has_to_catch_up_with_first() -> None:
    costs = measured(wait_s=0.09)
    costs.prefill.add_request(100, None)
    costs.prefill.add_wait(1.0)  # 10 ms a token
    costs.prefill.end()
    idle = sequence(0.1, is_idle=True)
    assert lengths(choose([idle], costs, Trials())) == [PROBE_STEPS]
    assert lengths(choose([replace(idle, num_behind=1)], costs, Trials())) == [PROBE_STEPS]
    assert lengths(choose([replace(idle, num_behind=100)], costs, Trials())) == [0]


def test_a_size_between_measured_ones_is_tried_where_a_knee_may_be() -> None:
    """Four sequences: up to eight tokens a step takes no longer, but only four and twelve were measured."""
    costs = measured({4: 0.1, 12: 0.15, 20: 0.25}, wait_s=0.001)
    batch = [sequence(0.8) for _ in range(4)]
    assert lengths(choose(batch, costs)) == [2] * 4, "as far as is known"
    apart = choose(batch[1:], costs, Trials(), num_others=1)
    assert "probe" not in [each.reason for each in apart], "what the others draft is not known"
    tried: list[int] = []
    while (chosen := choose(batch, costs, Trials()))[0].reason == "probe":
        tried.append(4 + sum(lengths(chosen)))
        costs.steps.add(tried[-1], max(0.1, 0.0125 * tried[-1]))
    assert len(tried) == len(set(tried)) < 12
    assert sum(lengths(chosen)) in {4, 5}, "the knee, or so near that it gains no 5% more"


def test_a_probe_whose_draft_did_not_come_goes_on_for_one_round() -> None:
    trials, costs = Trials(), measured(wait_s=0.09)
    trials.spend((CREDIT_ROUNDS - 1.0) * STEP_S)  # enough is left for one
    found, idle = [], sequence(0.1, is_idle=True)
    for number in range(4):
        found.append(lengths(choose([idle], costs, trials, now_s=number * (STEP_S + 0.09), num_emitted=number)))
        assert idle.acceptance is not None
        idle.acceptance.add(0, 0)
    assert found == [[PROBE_STEPS], [PROBE_STEPS], [0], [0]]


def test_a_round_goes_plain_where_its_time_without_drafts_is_not_known_and_says_that_it_is_a_trial() -> None:
    costs = measured(dict.fromkeys((1, 100), STEP_S), wait_s=0.2)
    assert choose([sequence(), sequence()], costs, drafting(Trials())) == [PLAIN_TRIAL] * 2
    assert lengths(choose([sequence(), sequence()], costs, drafting(spent()))) == [4, 4], (
        "it costs more than is allowed"
    )
    costs = measured(dict.fromkeys((1, 100), STEP_S), wait_s=0.1)
    assert lengths(choose([sequence(), sequence()], costs, drafting(Trials()))) == [4, 4], "twice as fast: no doubt"
    assert lengths(choose([sequence()], costs, drafting(Trials()), num_others=1)) == [4], "the other may have a draft"


def test_a_round_goes_plain_again_after_some_rounds() -> None:
    costs = measured(wait_s=0.2)
    for _ in range(PLAIN_EVERY):
        costs.steps.end_step()
    assert lengths(choose([sequence(), sequence()], costs, drafting(Trials()))) == [4, 4]
    costs.steps.end_step()
    assert choose([sequence(), sequence()], costs, drafting(Trials())) == [PLAIN_TRIAL] * 2


def test_beside_prefill_nothing_is_measured() -> None:
    costs = measured(dict.fromkeys((1, 100), STEP_S), wait_s=0.2)
    costs.prefill.add_request(100, None)
    assert lengths(choose([sequence(), sequence()], costs, drafting(Trials()))) == [4, 4]


def test_prompts_wait_for_a_few_rounds_while_no_step_of_so_many_was_measured() -> None:
    trials, costs = spent(), measured(dict.fromkeys((4, 100), STEP_S))
    found = [choose([sequence(num_to_prefill=30)] * 2, costs, trials) for _ in range(MAX_DEFERRED + 1)]
    assert found[:-1] == [[PLAIN_TRIAL] * 2] * MAX_DEFERRED
    assert lengths(found[-1]) == [4, 4]


def test_a_round_for_which_prompts_wait_has_no_probes() -> None:
    costs, idle = measured(dict.fromkeys((4, 100), STEP_S)), sequence(0.1, is_idle=True)
    assert choose([sequence(num_to_prefill=30), idle], costs, Trials()) == [PLAIN_TRIAL, OFF]


def test_the_shorter_prompts_are_prefilled_where_all_together_are_not_worth_it() -> None:
    costs = measured()
    costs.prefill.add_request(1000, 0.0)
    costs.prefill.add_step(2.0, 1.0)  # 1 ms a token
    costs.prefill.add_answer(1000, 0)
    costs.prefill.end()
    assert lengths(choose([sequence(num_to_prefill=each) for each in (9000, 40)], costs)) == [0, 4]
    assert lengths(choose([sequence(num_to_prefill=9000), sequence()], costs)) == [0, 4]
    assert lengths(choose([sequence(num_to_prefill=each) for each in (90_000, 90_000)], costs)) == [0, 0]


@pytest.mark.parametrize(
    ("num_lately", "prompt", "is_new", "depth"),
    [(4, 200, True, 0), (4, 200, False, 4), (4, 50, True, 4), (1, 200, True, 4)],
    ids=["it waits", "in the next round", "its prefill is quick", "rounds were no larger lately"],
)
def test_a_new_request_waits_a_round_where_others_may_join_it(
    num_lately: int, prompt: int, is_new: bool, depth: int
) -> None:
    costs, trials = measured(), spent()
    costs.prefill.add_request(1000, None)
    costs.prefill.add_wait(1.0)  # 1 ms a token, and a step takes 0.1 s
    costs.prefill.add_answer(1000, 0)
    costs.prefill.end()
    trials.note_sequences(num_lately)
    new = replace(sequence(num_to_prefill=prompt), is_new=is_new)
    assert lengths(choose([new], costs, trials)) == [depth]


def test_a_large_round_long_ago_lets_no_new_request_wait() -> None:
    costs, trials = measured(), spent()
    costs.prefill.add_request(30, None)
    costs.prefill.add_wait(3 * STEP_S)
    costs.prefill.end()
    new = replace(sequence(num_to_prefill=30), is_new=True)
    trials.note_sequences(2)
    assert lengths(choose([new], costs, trials)) == [0]
    for _ in range(100):  # 2 * 0.99 ** 100 is less than one
        trials.note_sequences(1)
    assert lengths(choose([new], costs, trials)) == [4]


def test_prompts_wait_anew_for_a_measurement_after_a_round_in_which_they_did_not() -> None:
    trials = Trials()
    for _ in range(2):
        found = [trials.defers(MAX_DEFERRED, is_useless=False) for _ in range(MAX_DEFERRED + 1)]
        assert found == [*[True] * MAX_DEFERRED, False]
    assert trials.defers(MAX_DEFERRED, is_useless=False)
    assert not trials.defers(MAX_DEFERRED, is_useless=True)
    assert all(trials.defers(MAX_DEFERRED, is_useless=False) for _ in range(MAX_DEFERRED))


def test_a_tree_asks_for_no_more_nodes_than_its_drafter_gives() -> None:
    few = replace(sequence(1.0), max_draft_tokens=4)
    snapshot = RoundSnapshot(sequences=[few], num_sequences=1, costs=measured(), trials=spent())
    (chosen,) = Goodput(DraftBudget(12, 6, 2)).choose(snapshot)
    assert chosen.budget.num_draft_tokens <= 4


def cost_s(trials: Trials) -> float:
    """What trials have cost, to a thousandth of a second, where none of the time was for trials."""
    credit_s = CREDIT_ROUNDS * STEP_S
    return credit_s - max(each / 1000 for each in range(-1000, 1000) if trials.allows(each / 1000, STEP_S))


@pytest.mark.parametrize(
    ("num_given", "took_s", "lost_s"),
    [(1, 0.19, 0.09), (2, 0.19, -0.01), (3, 0.25, -0.05), (1, 0.1, 0.0)],
    ids=["nothing was accepted", "one token was", "two were, later", "no draft came"],
)
def test_a_probe_costs_what_its_round_took_less_what_its_tokens_take_without_it(
    num_given: int, took_s: float, lost_s: float
) -> None:
    trials, costs, idle = Trials(), measured(wait_s=0.09), sequence(0.1, is_idle=True)
    assert lengths(choose([idle], costs, trials, 0.0, 7)) == [PROBE_STEPS]
    assert cost_s(trials) == pytest.approx(0.19 - (1 + 0.1 + 0.01) * STEP_S, abs=0.002), "as expected"
    choose([sequence(0.0, room=1)], costs, trials, took_s, 7 + num_given)
    assert cost_s(trials) == pytest.approx(lost_s, abs=0.004)  # the time that it took earned a hundredth


@pytest.mark.parametrize(
    ("num_others", "was_interrupted", "num_emitted"), [(0, True, 8), (1, False, 8), (0, False, 7)], ids=str
)
def test_a_probe_of_which_it_is_not_known_what_it_took_or_gave_costs_what_was_expected(
    num_others: int, was_interrupted: bool, num_emitted: int
) -> None:
    trials, costs, idle = Trials(), measured(wait_s=0.09), sequence(0.1, is_idle=True)
    assert lengths(choose([idle], costs, trials, 0.0, 7)) == [PROBE_STEPS]
    before_s = cost_s(trials)
    last = sequence(0.0, room=1)
    choose([last], costs, trials, 0.19, num_emitted, num_others=num_others, was_interrupted=was_interrupted)
    assert cost_s(trials) == pytest.approx(before_s, abs=0.003)


def test_a_probe_whose_draft_has_not_come_costs_no_more_than_was_expected() -> None:
    trials, costs, idle = Trials(), measured(wait_s=0.09), sequence(0.1, is_idle=True)
    assert lengths(choose([idle], costs, trials, 0.0, 7)) == [PROBE_STEPS]
    before_s = cost_s(trials)
    assert idle.acceptance is not None
    idle.acceptance.add(0, 0)
    choose([replace(idle, max_remaining_tokens=1)], costs, trials, 0.3, 8)  # it may still come in the next round
    assert cost_s(trials) == pytest.approx(before_s, abs=0.004)


def test_a_probe_that_took_long_costs_what_was_expected_where_no_plain_step_was_measured() -> None:
    trials, costs = Trials(), measured(dict.fromkeys((2, 4, 100), STEP_S), wait_s=0.09)
    assert lengths(choose([sequence(0.1, is_idle=True)], costs, trials, 0.0, 7)) == [PROBE_STEPS]
    expected_s = cost_s(trials)
    choose([sequence(0.0, room=1)], costs, trials, 0.3, 8)
    assert cost_s(trials) == pytest.approx(expected_s, abs=0.005)


def test_a_probe_whose_draft_came_does_not_go_on_for_another_sequence() -> None:
    trials, costs = Trials(), replace(measured(dict.fromkeys((4, 100), STEP_S)), rounds=RoundTimes())
    for length in (1, 2, 4) * 4:
        costs.rounds.add(Round([length], 0.05 * length))
    trials.spend((CREDIT_ROUNDS - 1.0) * STEP_S)  # enough is left for one
    batch = [sequence(0.1, is_idle=True) for _ in range(4)]
    (probed,) = [index for index, length in enumerate(lengths(choose(batch, costs, trials))) if length]
    for index, each in enumerate(batch):
        assert each.acceptance is not None
        each.acceptance.add(PROBE_STEPS if index == probed else 0, 0)
    assert lengths(choose(batch, costs, trials, 2 * STEP_S, 4)) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("fixed_s", "step_s", "depth"), [(0.2, 0.01, 8), (0.0, 0.1, PROBE_STEPS)], ids=["the way is long", "steps are dear"]
)
def test_a_probe_is_as_deep_as_costs_least_for_each_token_that_it_tests(
    fixed_s: float, step_s: float, depth: int
) -> None:
    """The first takes 0.32 s for 2.2 tokens, or 0.38 s for 3.2; the second 0.3 s or 0.9 s for as many."""
    costs = replace(measured(), rounds=RoundTimes())
    for length in (1, 2, 4, 8) * 6:
        costs.rounds.add(Round([length], fixed_s + step_s * length))
    trials = Trials()
    chosen = choose([sequence(0.7, is_idle=True)], costs, trials, policy=LONG)
    assert (lengths(chosen), chosen[0].reason) == ([depth], "probe")


@pytest.mark.parametrize(("left_s", "depth"), [(0.20, 4), (0.15, 3), (0.10, 0)])
def test_drafts_grow_as_far_as_the_account_can_bear(left_s: float, depth: int) -> None:
    """Drafts of two are known. Four may take 0.167 + 0.4 s and give 3.71 tokens, three 0.133 + 0.3 s and 3.19."""
    costs = replace(measured(dict.fromkeys((1, 3), STEP_S)), rounds=RoundTimes())
    for _ in range(8):
        costs.rounds.add(Round([2], 0.2))
    trials = drafting(Trials())
    trials.spend(CREDIT_ROUNDS * STEP_S - left_s)
    trials.deepest = 2
    assert lengths(choose([sequence(0.85)], costs, trials)) == [depth]
    assert trials.deepest == max(2, depth), "so that the next ones may be twice as deep, though no draft came"


def test_a_deeper_draft_than_any_that_did_not_come_goes_on_for_one_round() -> None:
    costs = replace(measured(dict.fromkeys((1, 3), STEP_S)), rounds=RoundTimes())
    for _ in range(8):
        costs.rounds.add(Round([2], 0.2))
    trials, late = drafting(Trials()), sequence(0.85)
    trials.spend(CREDIT_ROUNDS * STEP_S - 0.2)  # enough is left for one
    trials.deepest = 2
    found = []
    for number in range(3):
        trials.was_drafting = True
        found.append(lengths(choose([late], costs, trials, now_s=0.57 * number, num_emitted=number)))
        assert late.acceptance is not None
        late.acceptance.add(0, 0)
    assert found[:2] == [[4], [4]]
    assert found[2] != [4]


def luck(*accepted: int) -> SequenceSnapshot:
    """A sequence of whose drafts of four so many tokens were accepted."""
    acceptance = Acceptance()
    for each in accepted:
        acceptance.add(4, each)
    return SequenceSnapshot(max_remaining_tokens=99, num_tokens=50, acceptance=acceptance)


def dear(gain: float) -> Costs:
    """Drafts of four tokens, of which 0.8 are accepted each, make tokens come so many times as fast."""
    costs = replace(measured(), rounds=RoundTimes())
    wait_s = STEP_S * (sum(0.8**depth for depth in range(5)) / gain - 1.0)
    for length in (1, 2, 3, 4) * 4:
        costs.rounds.add(Round([length], wait_s))
    return costs


def test_bad_luck_in_few_drafts_does_not_end_drafting_and_in_many_it_does() -> None:
    few, many = luck(1, 2), luck(*[1, 2] * 10)
    trials = spent()
    assert lengths(choose([few], dear(1.1), trials)) == [0], "nothing is left to spend"
    assert choose([few], dear(1.1), Trials()) == [Choice(DraftBudget.chain(4), "probe")]
    assert lengths(choose([many], dear(1.1), Trials())) == [0]


def test_good_luck_in_few_drafts_is_a_trial_and_in_many_begins_drafting() -> None:
    few, many = luck(4), luck(*[4] * 10)
    trials = Trials()
    assert choose([few], dear(0.8), trials) == [Choice(DraftBudget.chain(4), "probe")]
    assert not trials.was_drafting
    assert choose([many], dear(0.8), trials) == [Choice(DraftBudget.chain(4), "cap")]
    assert trials.was_drafting
    assert choose([few], dear(0.8), trials)[0].reason == "cap", "what has begun goes on"


def test_the_more_a_trial_promises_the_more_it_may_cost() -> None:
    def is_tried(gain: float, spent_rounds: float) -> bool:
        trials = Trials()
        trials.spend(spent_rounds * STEP_S)
        return any(lengths(choose([luck(2, 2)], dear(gain), trials)))

    assert is_tried(1.0, CREDIT_ROUNDS + 0.9 * PROMISED_ROUNDS)
    assert not is_tried(1.0, CREDIT_ROUNDS + PROMISED_ROUNDS)
    assert not is_tried(0.88, CREDIT_ROUNDS + 0.9 * PROMISED_ROUNDS)
    assert is_tried(0.88, CREDIT_ROUNDS)


def test_a_draft_that_is_tried_for_its_promise_goes_on_for_one_round_if_it_did_not_come() -> None:
    trials, late = Trials(), luck(2, 2)
    trials.spend((CREDIT_ROUNDS + PROMISED_ROUNDS - 1.0) * STEP_S)  # enough is left for one
    found = []
    for number in range(4):
        found.append(lengths(choose([late], dear(1.0), trials, now_s=0.34 * number, num_emitted=number)))
        assert late.acceptance is not None
        late.acceptance.add(0, 0)
    assert found == [[4], [4], [0], [0]]


def test_for_what_it_promises_nothing_is_prefilled() -> None:
    unheld = replace(luck(2, 2), num_to_prefill=50, is_held=False)
    assert lengths(choose([unheld], dear(1.2), Trials())) == [0]


def test_what_a_hub_prefills_begins_drafting_without_being_sure() -> None:
    unheld = replace(luck(4), num_to_prefill=50, is_held=False)
    trials = Trials()
    assert choose([unheld], dear(0.8), trials) == [Choice(DraftBudget.chain(4), "cap")]
    assert trials.was_drafting


def test_apart_from_others_of_its_round_a_draft_begins_by_luck_and_is_not_tried_for_its_promise() -> None:
    assert [each.reason for each in choose([luck(4)], dear(0.8), Trials(), num_others=1)] == ["off"]
    slow = replace(dear(1.0), steps=measured(dict.fromkeys((1, 2, 8), 2 * STEP_S)).steps)
    trials = Trials()
    assert [each.reason for each in choose([luck(4, 4)], slow, trials, num_others=1)] == ["cap"]
    assert not trials.was_drafting, "of a part of the round"
    assert [each.reason for each in choose([luck(2, 2), luck(2, 2)], slow, Trials())] == ["probe", "probe"]
    assert [each.reason for each in choose([luck(2, 2)], slow, Trials(), num_others=1)] == ["off"]


def test_beside_prefill_no_draft_is_tried_for_its_promise() -> None:
    costs = dear(1.0)
    assert lengths(choose([luck(2, 2)], costs, Trials())) == [4]
    costs.prefill.add_request(100, None)
    assert lengths(choose([luck(2, 2)], costs, Trials())) == [0]


def test_a_draft_that_is_tried_for_its_promise_is_at_most_twice_as_deep_as_any_before() -> None:
    costs = replace(measured(), rounds=RoundTimes())
    for length in (1, 2) * 8:
        costs.rounds.add(Round([length], 2 * STEP_S))
    chosen = choose([luck(2, 2)], costs, Trials(), policy=LONG)
    assert (lengths(chosen), chosen[0].reason) == ([4], "probe")
