"""Whether a hub's prefill pays, by what it cost vLLM before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from starspec.policy.length.costs import Costs
from starspec.policy.length.prefill_cost import FIRST_OUTPUT_LEN, MAX_SLOWED, MAX_UNFINISHED, PrefillCost

USUAL_S = 10.0  # of the step beside it


def prefill(
    cost: PrefillCost, num_sent: int, slowed_s: float, num_prefilled: int | None = None, waited_s: float = 0.0
) -> None:
    """One prompt, prefilled until 100 s."""
    cost.add_request(num_sent, waited_s)
    cost.add_step(USUAL_S + slowed_s, USUAL_S)
    cost.add_answer(num_sent if num_prefilled is None else num_prefilled, 0)
    cost.end()


def after(num_sent: int, slowed_s: float, num_prefilled: int | None = None, waited_s: float = 0.0) -> PrefillCost:
    cost = PrefillCost()
    prefill(cost, num_sent, slowed_s, num_prefilled, waited_s)
    return cost


def test_what_was_never_prefilled_is_tried() -> None:
    cost = PrefillCost()
    assert cost.seconds(10_000) == 0.0
    assert cost.pays(10_000, before_s=0.1, after_s=0.099)
    assert not cost.pays(10_000, before_s=0.1, after_s=0.1), "drafts that save nothing need no prefill"


def test_a_text_costs_by_its_tokens_what_those_before_it_did() -> None:
    cost = after(num_sent=200, slowed_s=1.0)
    assert cost.seconds(100) == pytest.approx(0.5)
    for _ in range(50):
        cost.add_request(100, 0.0)
        cost.add_step(USUAL_S + 2.5, USUAL_S)
        cost.add_step(USUAL_S - 0.5, USUAL_S)  # steps vary
        cost.add_answer(100, 0)
        cost.end()
    assert cost.seconds(100) == pytest.approx(2.0, rel=1e-3)


def test_long_texts_tell_more_than_short_ones() -> None:
    cost = after(num_sent=4000, slowed_s=8.0)
    for _ in range(5):
        prefill(cost, 5, slowed_s=0.0)
    assert cost.seconds(1000) == pytest.approx(2.0, rel=0.05)


def test_a_wait_costs_the_same_however_long_the_text_is() -> None:
    cost = after(num_sent=20, slowed_s=0.0, waited_s=0.03)
    assert cost.seconds(4000) == pytest.approx(0.03)


def test_one_interrupted_step_says_little_even_the_first() -> None:
    assert after(num_sent=100, slowed_s=5000.0).seconds(100) == pytest.approx(MAX_SLOWED * USUAL_S)


def test_a_prefill_beside_which_no_step_was_compared_tells_nothing() -> None:
    cost = after(num_sent=100, slowed_s=1.0)
    for _ in range(5):
        cost.add_request(100, 0.0)
        cost.add_step(3.0, None)
        cost.add_answer(100, 0)
        cost.end()
    assert cost.seconds(100) == pytest.approx(1.0)


def test_steps_that_could_not_be_compared_are_thought_to_lose_as_much_as_the_others() -> None:
    cost = PrefillCost()
    cost.add_request(100, 0.0)
    cost.add_step(USUAL_S + 1.0, USUAL_S)
    for _ in range(3):
        cost.add_step(USUAL_S, None)
    cost.add_answer(100, 0)
    cost.end()
    assert cost.seconds(100) == pytest.approx(4.0)


def test_nothing_is_won_by_prefill() -> None:
    assert after(num_sent=200, slowed_s=-1.0).seconds(200) == 0.0
    assert after(num_sent=200, slowed_s=0.0, waited_s=-1.0).seconds(200) == 0.0


@pytest.mark.parametrize("before_s", [0.0, 1e-6])
def test_what_cost_nothing_once_may_cost_something(before_s: float) -> None:
    cost = after(num_sent=100, slowed_s=before_s)
    for _ in range(3):
        prefill(cost, 100, slowed_s=1.0)
    assert cost.seconds(100) >= 0.7


def test_drafts_have_to_save_more_until_the_end_than_prefill_costs() -> None:
    """A second that vLLM loses, 28 tokens of 128: 100 are left to be drafted for."""
    assert FIRST_OUTPUT_LEN == 128
    before_s = 1.0 / 28
    cost = after(num_sent=100, slowed_s=1.0)
    assert cost.pays(100, before_s, before_s - 0.0101)
    assert not cost.pays(100, before_s, before_s - 0.0099)
    assert not cost.pays(100, before_s=1.0 / 130, after_s=0.0), "it ends before"


def test_how_long_answers_are_is_learnt_whichever_hub_there_is() -> None:
    before = Costs(prefill=after(num_sent=100, slowed_s=1.0))
    for _ in range(100):
        before.add_finished(38)
    costs = replace(before, prefill=PrefillCost())
    assert costs.prefill.seconds(100) == 0.0
    prefill(costs.prefill, 100, slowed_s=1.0)
    assert costs.pays_prefill(100, before_s=1.0 / 28, after_s=0.0, most_tokens=99) is False, "10 are left"
    assert costs.pays_prefill(100, before_s=1.0 / 8, after_s=1.0 / 8 - 0.034, most_tokens=99), "30 are"
    assert not costs.pays_prefill(100, before_s=1.0 / 8, after_s=1.0 / 8 - 0.033, most_tokens=99)


def test_what_was_told_in_vain_makes_the_rest_dearer() -> None:
    assert after(num_sent=200, slowed_s=1.0, num_prefilled=150).seconds(150) == pytest.approx(1.0)
    assert after(num_sent=200, slowed_s=1.0, num_prefilled=1).seconds(200) == pytest.approx(MAX_UNFINISHED * 1.0)
    assert after(num_sent=200, slowed_s=1.0, num_prefilled=0).seconds(200) == pytest.approx(MAX_UNFINISHED * 1.0)


def test_what_the_hub_refuses_it_does_not_prefill() -> None:
    cost = after(num_sent=100, slowed_s=1.0)
    cost.add_request(1000, 0.0)
    cost.add_answer(0, num_refused=1000)
    assert not cost.is_going_on
    assert cost.seconds(100) == pytest.approx(1.0)
    cost.add_request(1100, 0.0)
    cost.add_step(USUAL_S + 1.0, USUAL_S)
    cost.add_answer(100, num_refused=1000)
    cost.end()
    assert cost.seconds(100) == pytest.approx(1.0)


def test_what_goes_on_is_known_to_cost_what_it_did_so_far() -> None:
    cost = after(num_sent=100, slowed_s=0.1)
    cost.add_request(100, 0.0)
    assert cost.is_going_on
    assert cost.seconds(100) == pytest.approx(0.1)
    cost.add_step(USUAL_S + 3.0, USUAL_S)
    assert cost.seconds(100) == pytest.approx(MAX_UNFINISHED * 3.0)
    cost.end()
    assert not cost.is_going_on


def test_what_nobody_waited_for_says_nothing_of_waits() -> None:
    cost = after(num_sent=20, slowed_s=0.0, waited_s=0.03)
    for _ in range(20):
        cost.add_request(20, None)
        cost.add_answer(20, 0)
        cost.end()
    assert cost.seconds(4000) == pytest.approx(0.03)
